/* Callee: stands in a caller's frame for a call that is under way. Part of _frame.c.
 *
 * The stub of a frame that was left in the middle of a call has a Callee where the callable was. Called there,
 * inside the caller's exception ranges, it runs what is left of the call.
 */
#pragma once

static PyObject *
make_callee(PyObject *handover, PyObject *made, bool returns_rest)
{
    Callee *self = PyObject_GC_New(Callee, &Callee_Type);
    if (self == NULL) {
        return NULL;
    }
    self->handover = Py_NewRef(handover);
    self->made = Py_XNewRef(made);
    self->returns_rest = returns_rest;
    self->vectorcall = (vectorcallfunc)callee_vectorcall;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

/* The value of the call; with `returns_rest` a new Callee when the rest can be captured. Arguments are ignored. */
static PyObject *
callee_vectorcall(Callee *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *rest = self->handover;
    if (rest == NULL) {
        PyErr_SetString(PyExc_SystemError, "graphlift: the rest of a call is run a second time");
        return NULL;
    }
    self->handover = NULL;
    PyObject *made = Py_XNewRef(self->made);
    PyObject *value = run_handover((Handover *)rest);
    if (!self->returns_rest) {
        value = run_handovers(value);
    }
    else if (value != NULL && Py_IS_TYPE(value, &Handover_Type)) {
        Py_SETREF(value, make_callee(value, made, false));
        Py_XDECREF(made);
        return value;
    }
    if (made != NULL && value != NULL) {
        if (value != Py_None) {
            PyErr_Format(PyExc_TypeError, "__init__() should return None, not '%.200s'", Py_TYPE(value)->tp_name);
            Py_CLEAR(made);
        }
        Py_SETREF(value, Py_XNewRef(made));
    }
    Py_XDECREF(made);
    return value;
}

static PyObject *
callee_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"handover", "made", "returns_rest", NULL};
    PyObject *handover, *made = NULL;
    int returns_rest = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|Op:Callee", keywords, &Handover_Type, &handover, &made,
                                     &returns_rest)) {
        return NULL;
    }
    return make_callee(handover, made == Py_None ? NULL : made, returns_rest);
}

static int
callee_traverse(Callee *self, visitproc visit, void *arg)
{
    Py_VISIT(self->handover);
    Py_VISIT(self->made);
    return 0;
}

static int
callee_clear(Callee *self)
{
    Py_CLEAR(self->handover);
    Py_CLEAR(self->made);
    return 0;
}

static void
callee_dealloc(Callee *self)
{
    PyObject_GC_UnTrack(self);
    callee_clear(self);
    PyObject_GC_Del(self);
}

static PyMemberDef callee_members[] = {
    {"handover", T_OBJECT, offsetof(Callee, handover), READONLY, "the rest of the call; None once it was run"},
    {"made", T_OBJECT, offsetof(Callee, made), READONLY, "the object that the call is to give, for an __init__"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Callee, vectorcall), READONLY, NULL},
    {NULL},
};

static PyTypeObject Callee_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "graphlift.frame._frame.Callee",
    .tp_doc = PyDoc_STR("Callee(handover, made=None, returns_rest=False): a call under way, in its caller's place."),
    .tp_basicsize = sizeof(Callee),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = callee_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Callee, vectorcall),
    .tp_traverse = (traverseproc)callee_traverse,
    .tp_clear = (inquiry)callee_clear,
    .tp_dealloc = (destructor)callee_dealloc,
    .tp_members = callee_members,
};

static PyObject *
tuple_of(PyObject *const *items, Py_ssize_t count, Py_ssize_t room)
{
    PyObject *made = PyTuple_New(count + room);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyTuple_SET_ITEM(made, i, Py_NewRef(items[i]));
    }
    return made;
}

/* hand_over_call(next, rest, *cells, *values): what a stub returns after a call, whose value is the last of `values`.
 * The call is over: a Handover to the code `next`; or, where `next` is no code, the value itself (None) or the only
 * item of the tuple `next`. It is not: a Handover to the code that `rest` finds for the Callee, with the Callee
 * and the arguments that `rest` gives in the call's place. */
static PyObject *
frame_hand_over_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 3) {
        PyErr_SetString(PyExc_TypeError, "hand_over_call expects next, rest, cells and values");
        return NULL;
    }
    PyObject *next = args[0], *value = args[nargs - 1];
    bool pending = Py_IS_TYPE(value, &Callee_Type) && ((Callee *)value)->handover != NULL;
    if (!pending && !PyCode_Check(next)) {
        return Py_NewRef(next == Py_None ? value : PyTuple_GET_ITEM(next, 0));
    }
    PyObject *found = NULL, *code = next, *extra = NULL, *closure = NULL, *values = NULL, *result = NULL;
    if (pending) {
        Compiled *saved = active_owner;
        active_owner = NULL;
        found = PyObject_CallOneArg(args[1], ((Handover *)((Callee *)value)->handover)->code);
        active_owner = saved;
        if (found == NULL) {
            return NULL;
        }
        code = PyTuple_GET_ITEM(found, 0);
        extra = PyTuple_GET_ITEM(found, 1);
    }
    Py_ssize_t cells = ((PyCodeObject *)code)->co_nfreevars, more = extra ? PyTuple_GET_SIZE(extra) : 0;
    Py_ssize_t kept = nargs - 2 - cells;
    PyObject *globals = PyEval_GetGlobals();
    if (kept < 1 || globals == NULL) {
        PyErr_SetString(PyExc_TypeError, "hand_over_call: fewer arguments than free variables, or no calling frame");
        goto done;
    }
    if ((cells && (closure = tuple_of(args + 2, cells, 0)) == NULL)
        || (values = tuple_of(args + 2 + cells, kept, more)) == NULL) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < more; i++) {
        PyTuple_SET_ITEM(values, kept + i, Py_NewRef(PyTuple_GET_ITEM(extra, i)));
    }
    result = make_handover(code, globals, closure, values);
    closure = values = NULL;
done:
    Py_XDECREF(closure);
    Py_XDECREF(values);
    Py_XDECREF(found);
    return result;
}
