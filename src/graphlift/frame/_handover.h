/* Handover, how break stubs make one, and the trampoline. Part of _frame.c.
 */
#pragma once

/* Steals closure and args. */
static PyObject *
make_handover(PyObject *code, PyObject *globals, PyObject *closure, PyObject *args)
{
    Handover *self = PyObject_GC_New(Handover, &Handover_Type);
    if (self == NULL) {
        Py_XDECREF(closure);
        Py_DECREF(args);
        return NULL;
    }
    self->code = Py_NewRef(code);
    self->globals = Py_NewRef(globals);
    self->closure = closure;
    self->args = args;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static PyObject *
handover_vectorcall(PyObject *type, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 4 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames))) {
        PyErr_SetString(PyExc_TypeError, "Handover expects code, globals, closure, args");
        return NULL;
    }
    PyObject *closure = args[2] == Py_None ? NULL : args[2];
    if (!PyCode_Check(args[0]) || !PyDict_Check(args[1]) || (closure != NULL && !PyTuple_Check(closure))
        || !PyTuple_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "Handover expects a code object, a dict, a tuple of cells or None, a tuple");
        return NULL;
    }
    Py_ssize_t cells = closure == NULL ? 0 : PyTuple_GET_SIZE(closure);
    int wanted = ((PyCodeObject *)args[0])->co_nfreevars;
    if (cells != wanted) {
        PyErr_Format(PyExc_ValueError, "Handover: the code has %d free variables, the closure %zd", wanted, cells);
        return NULL;
    }
    return make_handover(args[0], args[1], Py_XNewRef(closure), Py_NewRef(args[3]));
}

static PyObject *
handover_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Handover takes no keyword arguments");
        return NULL;
    }
    return handover_vectorcall((PyObject *)type, &PyTuple_GET_ITEM(args, 0), PyTuple_GET_SIZE(args), NULL);
}

static int
handover_traverse(Handover *self, visitproc visit, void *arg)
{
    Py_VISIT(self->globals);
    Py_VISIT(self->closure);
    Py_VISIT(self->args);
    return 0;
}

static int
handover_clear(Handover *self)
{
    Py_CLEAR(self->code);
    Py_CLEAR(self->globals);
    Py_CLEAR(self->closure);
    Py_CLEAR(self->args);
    return 0;
}

static void
handover_dealloc(Handover *self)
{
    PyObject_GC_UnTrack(self);
    handover_clear(self);
    PyObject_GC_Del(self);
}

static PyMemberDef handover_members[] = {
    {"code", T_OBJECT, offsetof(Handover, code), READONLY, NULL},
    {"globals", T_OBJECT, offsetof(Handover, globals), READONLY, NULL},
    {"closure", T_OBJECT, offsetof(Handover, closure), READONLY, NULL},
    {"args", T_OBJECT, offsetof(Handover, args), READONLY, NULL},
    {NULL},
};

static PyTypeObject Handover_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "graphlift.frame._frame.Handover",
    .tp_doc = PyDoc_STR("Handover(code, globals, closure, args): the rest of a call, for the trampoline to run."),
    .tp_basicsize = sizeof(Handover),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = handover_new,
    .tp_vectorcall = handover_vectorcall,
    .tp_traverse = (traverseproc)handover_traverse,
    .tp_clear = (inquiry)handover_clear,
    .tp_dealloc = (destructor)handover_dealloc,
    .tp_members = handover_members,
};

/* hand_over(code, *cells, *values): a Handover with the globals of the calling frame. */
static PyObject *
frame_hand_over(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 1 || !PyCode_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "hand_over expects a code object first");
        return NULL;
    }
    Py_ssize_t cells = ((PyCodeObject *)args[0])->co_nfreevars, values = nargs - 1 - cells;
    PyObject *globals = PyEval_GetGlobals();
    if (values < 0 || globals == NULL) {
        PyErr_SetString(PyExc_TypeError, "hand_over: fewer arguments than free variables, or no calling frame");
        return NULL;
    }
    PyObject *closure = NULL, *rest = PyTuple_New(values);
    if (rest == NULL || (cells && (closure = PyTuple_New(cells)) == NULL)) {
        Py_XDECREF(rest);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < cells; i++) {
        PyTuple_SET_ITEM(closure, i, Py_NewRef(args[1 + i]));
    }
    for (Py_ssize_t i = 0; i < values; i++) {
        PyTuple_SET_ITEM(rest, i, Py_NewRef(args[1 + cells + i]));
    }
    return make_handover(args[0], globals, closure, rest);
}

static inline _PyInterpreterFrame *
current_frame(void)
{
    PyThreadState *tstate = PyThreadState_Get();
#if PY_VERSION_HEX < 0x030D0000
    return tstate->cframe->current_frame;
#else
    return tstate->current_frame;
#endif
}

/* A tuple of the values in some slots of a frame; NULL for an empty tuple of cells. */
static PyObject *
slot_values(_PyInterpreterFrame *frame, PyObject *slots)
{
    Py_ssize_t count = PyTuple_GET_SIZE(slots);
    PyObject *values = PyTuple_New(count);
    for (Py_ssize_t i = 0; values != NULL && i < count; i++) {
        PyObject *value = frame->localsplus[PyLong_AsSsize_t(PyTuple_GET_ITEM(slots, i))];
        if (value == NULL) {
            PyErr_SetString(PyExc_SystemError, "hand_over_live: a slot that must be bound is not");
            Py_CLEAR(values);
            break;
        }
        PyTuple_SET_ITEM(values, i, Py_NewRef(value));
    }
    return values;
}

/* hand_over_live(find, local_slots, value_slots, cell_slots): as hand_over, reading the calling frame itself.
 * `find` gets, for each local, whether it is bound, and returns the code to go on with. The values are moved: a
 * traceback may hold the frame, and must not hold by it the exception that it belongs to. */
static PyObject *
frame_hand_over_live(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    _PyInterpreterFrame *frame = current_frame();
    if (nargs != 4 || frame == NULL || !PyTuple_Check(args[1]) || !PyTuple_Check(args[2]) || !PyTuple_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "hand_over_live expects find and three tuples of slots, in a frame");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(args[1]), kept = 0, more = PyTuple_GET_SIZE(args[2]);
    PyObject *bound = PyTuple_New(count), *code = NULL, *values = NULL, *closure = NULL, *all = NULL, *result = NULL;
    if (bound == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        bool there = frame->localsplus[PyLong_AsSsize_t(PyTuple_GET_ITEM(args[1], i))] != NULL;
        PyTuple_SET_ITEM(bound, i, Py_NewRef(there ? Py_True : Py_False));
        kept += there;
    }
    Compiled *saved = active_owner;
    active_owner = NULL;
    code = PyObject_Call(args[0], bound, NULL);
    active_owner = saved;
    if (code == NULL || (values = slot_values(frame, args[2])) == NULL || (all = PyTuple_New(kept + more)) == NULL) {
        goto done;
    }
    if (!PyCode_Check(code) || ((PyCodeObject *)code)->co_nfreevars != PyTuple_GET_SIZE(args[3])) {
        PyErr_SetString(PyExc_TypeError, "hand_over_live: find did not return a code object that fits");
        goto done;
    }
    if (PyTuple_GET_SIZE(args[3]) && (closure = slot_values(frame, args[3])) == NULL) {
        goto done;
    }
    Py_ssize_t next = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject **slot = &frame->localsplus[PyLong_AsSsize_t(PyTuple_GET_ITEM(args[1], i))];
        if (PyTuple_GET_ITEM(bound, i) == Py_True) {
            PyTuple_SET_ITEM(all, next++, *slot);
            *slot = NULL;
        }
    }
    for (Py_ssize_t i = 0; i < more; i++) {
        PyTuple_SET_ITEM(all, next++, Py_NewRef(PyTuple_GET_ITEM(values, i)));
        Py_CLEAR(frame->localsplus[PyLong_AsSsize_t(PyTuple_GET_ITEM(args[2], i))]);
    }
    result = make_handover(code, frame->f_globals, closure, Py_NewRef(all));
done:
    Py_XDECREF(all);
    Py_XDECREF(values);
    Py_XDECREF(code);
    Py_DECREF(bound);
    return result;
}

/* Runs one handover; steals it. Its values are moved out, so that the frame alone keeps them alive. */
static PyObject *
run_handover(Handover *self)
{
    PyObject *func = PyFunction_New(self->code, self->globals);
    if (func == NULL || (self->closure != NULL && PyFunction_SetClosure(func, self->closure) < 0)) {
        Py_XDECREF(func);
        Py_DECREF(self);
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(self->args);
    PyObject *small[SMALL_CALL];
    PyObject **call = count + 1 <= SMALL_CALL ? small : PyMem_Malloc((count + 1) * sizeof(PyObject *));
    if (call == NULL) {
        PyErr_NoMemory();
        Py_DECREF(func);
        Py_DECREF(self);
        return NULL;
    }
    call[0] = NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        call[i + 1] = Py_NewRef(PyTuple_GET_ITEM(self->args, i));
    }
    Py_DECREF(self);
    Pending outer = pending;
    pending = (Pending){func, call + 1, count, NULL, true};
    PyObject *result = PyObject_Vectorcall(func, call + 1, count | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    pending = outer;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_XDECREF(call[i + 1]);
    }
    if (call != small) {
        PyMem_Free(call);
    }
    Py_DECREF(func);
    return result;
}

static PyObject *
frame_trampoline(PyObject *module, PyObject *value)
{
    return run_handovers(Py_NewRef(value));
}

/* Steals. */
static PyObject *
run_handovers(PyObject *value)
{
    while (value != NULL && Py_IS_TYPE(value, &Handover_Type)) {
        value = run_handover((Handover *)value);
    }
    return value;
}
