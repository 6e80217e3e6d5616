/* Callee: stands in a caller's frame for a call that is under way. Part of _frame.c.
 *
 * The stub of a frame that was left in the middle of a call has a Callee where the callable was, or in the place of
 * the operands of the instruction that led to the callee. Called there, inside the caller's exception ranges, it runs
 * what is left of the call.
 */
#pragma once

static PyObject *
make_callee(PyObject *handover, PyObject *finish, PyObject *attribute, bool returns_rest)
{
    Callee *self = PyObject_GC_New(Callee, &Callee_Type);
    if (self == NULL) {
        return NULL;
    }
    self->handover = Py_NewRef(handover);
    self->finish = Py_XNewRef(finish);
    self->attribute = Py_XNewRef(attribute);
    self->returns_rest = returns_rest;
    self->vectorcall = (vectorcallfunc)callee_vectorcall;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static PyObject *
tuple_of(PyObject *const *items, Py_ssize_t count, Py_ssize_t room)
{
    PyObject *made = PyTuple_New(count + room);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyTuple_SET_ITEM(made, i, Py_NewRef(items[i]));
    }
    return made;
}

/* What a step, a function and operands, makes of the callee's value, which it steals. Its own frame is in no
 * traceback: the interpreter does in C what it does. Or, of a code, globals and operands: a Handover to that code, which
 * stands for a loop of C, and has no frame while the callee runs. */
static PyObject *
step_value(PyObject *step, PyObject *value)
{
    PyObject *function = PyTuple_GET_ITEM(step, 0);
    bool is_code = PyCode_Check(function);
    Py_ssize_t operands = PyTuple_GET_SIZE(step) - 1 - is_code;
    PyObject *args = tuple_of(&PyTuple_GET_ITEM(step, 1 + is_code), operands, 1);
    if (args == NULL) {
        Py_DECREF(value);
        return NULL;
    }
    PyTuple_SET_ITEM(args, operands, value);
    if (is_code) {
        return make_handover(function, PyTuple_GET_ITEM(step, 1), NULL, args);
    }
    PyObject *result = PyObject_Call(function, args, NULL);
    Py_DECREF(args);
    if (result == NULL && PyFunction_Check(function)) {
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        PyObject *below = trace == NULL ? NULL : Py_XNewRef(((PyTracebackObject *)trace)->tb_next);
        Py_XDECREF(trace);
        PyErr_Restore(type, error, below);
    }
    return result;
}

/* The callee looked for an attribute and raised an AttributeError: `attribute` is the object, the name, and the
 * __getattr__ to ask then, or None. As slot_tp_getattr_hook and PyObject_GetAttr do. */
static PyObject *
attribute_missed(PyObject *attribute)
{
    PyObject *object = PyTuple_GET_ITEM(attribute, 0), *name = PyTuple_GET_ITEM(attribute, 1);
    PyObject *hook = PyTuple_GET_ITEM(attribute, 2), *type, *error, *trace;
    if (hook != Py_None) {
        PyErr_Clear();
        PyObject *value = PyObject_CallFunctionObjArgs(hook, object, name, NULL);
        if (value != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return value;
        }
    }
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (PyErr_GivenExceptionMatches(error, PyExc_AttributeError)) {
        PyAttributeErrorObject *of = (PyAttributeErrorObject *)error;
        if (of->name == NULL && of->obj == NULL) {
            of->name = Py_NewRef(name);
            of->obj = Py_NewRef(object);
        }
    }
    PyErr_Restore(type, error, trace);
    return NULL;
}

/* The steps that are left, or NULL; steals `steps`. */
static PyObject *
without_first(PyObject *steps)
{
    Py_ssize_t count = steps == NULL ? 0 : PyTuple_GET_SIZE(steps);
    PyObject *rest = count > 1 ? PyTuple_GetSlice(steps, 1, count) : NULL;
    Py_XDECREF(steps);
    return rest;
}

/* What leaves a generator for a StopIteration (PEP 479): the interpreter converts it itself from CPython 3.12 on. */
static void
stopped_inside(void)
{
    PyObject *type, *cause, *trace, *error;
    PyErr_Fetch(&type, &cause, &trace);
    PyErr_NormalizeException(&type, &cause, &trace);
    if (trace != NULL) {
        PyException_SetTraceback(cause, trace);
    }
    PyErr_SetString(PyExc_RuntimeError, "generator raised StopIteration");
    PyObject *kind, *place;
    PyErr_Fetch(&kind, &error, &place);
    PyErr_NormalizeException(&kind, &error, &place);
    PyException_SetCause(error, Py_NewRef(cause));
    PyException_SetContext(error, cause);
    PyErr_Restore(kind, error, place);
    Py_DECREF(type);
    Py_XDECREF(trace);
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
    PyObject *finish = Py_XNewRef(self->finish), *attribute = Py_XNewRef(self->attribute);
    PyCodeObject *code = (PyCodeObject *)Py_NewRef(((Handover *)rest)->code);
    PyObject *value = run_handover((Handover *)rest);
    if (value == NULL && (code->co_flags & CO_FUTURE_GENERATOR_STOP) && PyErr_ExceptionMatches(PyExc_StopIteration)) {
        stopped_inside();
    }
    Py_DECREF(code);
    for (;;) {
        if (!self->returns_rest) {
            value = run_handovers(value);
        }
        else if (value != NULL && Py_IS_TYPE(value, &Handover_Type)) {
            Py_SETREF(value, make_callee(value, finish, attribute, false));
            break;
        }
        if (value == NULL && attribute != NULL) {
            if (PyTuple_GET_SIZE(attribute) == 1) {
                if (PyErr_ExceptionMatches(PyExc_StopIteration)) {
                    PyErr_Clear();
                    value = Py_NewRef(PyTuple_GET_ITEM(attribute, 0));
                    finish = without_first(finish);
                }
            }
            else if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
                value = attribute_missed(attribute);
            }
        }
        if (value == NULL || finish == NULL) {
            break;
        }
        Py_CLEAR(attribute);
        value = step_value(PyTuple_GET_ITEM(finish, 0), value);
        finish = without_first(finish);
    }
    Py_XDECREF(finish);
    Py_XDECREF(attribute);
    return value;
}

static PyObject *
callee_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"handover", "finish", "attribute", "returns_rest", NULL};
    PyObject *handover, *finish = NULL, *attribute = NULL;
    int returns_rest = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|O!O!p:Callee", keywords, &Handover_Type, &handover, &PyTuple_Type,
                                     &finish, &PyTuple_Type, &attribute, &returns_rest)) {
        return NULL;
    }
    Py_ssize_t parts = attribute == NULL ? 0 : PyTuple_GET_SIZE(attribute);
    if (parts != 0 && parts != 1 && parts != 3) {
        PyErr_SetString(PyExc_TypeError, "attribute is an object, a name and a __getattr__ or None; or an iterator");
        return NULL;
    }
    for (Py_ssize_t i = 0; finish != NULL && i < PyTuple_GET_SIZE(finish); i++) {
        PyObject *step = PyTuple_GET_ITEM(finish, i);
        Py_ssize_t size = PyTuple_Check(step) ? PyTuple_GET_SIZE(step) : 0;
        if (size == 0 || (PyCode_Check(PyTuple_GET_ITEM(step, 0)) && (size < 2 || !PyDict_Check(PyTuple_GET_ITEM(step, 1))))) {
            PyErr_SetString(PyExc_TypeError, "a step is a function, or a code and globals, and operands");
            return NULL;
        }
    }
    bool finishes = finish != NULL && PyTuple_GET_SIZE(finish), looks_up = attribute != NULL && PyTuple_GET_SIZE(attribute);
    return make_callee(handover, finishes ? finish : NULL, looks_up ? attribute : NULL, returns_rest);
}

static int
callee_traverse(Callee *self, visitproc visit, void *arg)
{
    Py_VISIT(self->handover);
    Py_VISIT(self->finish);
    Py_VISIT(self->attribute);
    return 0;
}

static int
callee_clear(Callee *self)
{
    Py_CLEAR(self->handover);
    Py_CLEAR(self->finish);
    Py_CLEAR(self->attribute);
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
    {"finish", T_OBJECT, offsetof(Callee, finish), READONLY,
     "steps, each a function, or a code and its globals, and operands: given the callee's value, then what that gave; or None"},
    {"attribute", T_OBJECT, offsetof(Callee, attribute), READONLY,
     "the object, the name and the __getattr__ of a lookup, for an AttributeError; the value for a StopIteration; or None"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Callee, vectorcall), READONLY, NULL},
    {NULL},
};

static PyTypeObject Callee_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "graphlift.frame._frame.Callee",
    .tp_doc = PyDoc_STR("Callee(handover, finish=(), attribute=(), returns_rest=False): a call under way."),
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

/* hand_over_call(next, rest, *cells, *values): what a stub returns after a call, whose value is the last of `values`.
 * The call is over: a Handover to the code `next`, without the value if that has no parameter for it; or, where `next`
 * is no code, the value itself (None) or the only item of the tuple `next`. It is not: a Handover to the code that `rest` finds for the Callee, with the Callee
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
    if (!pending && ((PyCodeObject *)code)->co_argcount == kept - 1) {
        kept -= 1;
    }
    PyObject *globals = PyEval_GetGlobals();
    if (kept < 0 || globals == NULL) {
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
