/* The callables that turn the hook on and off for their thread. Part of _frame.c.
 */
#pragma once

/* ---- CompiledCallable ------------------------------------------------------------------------------------- */

/* The call's arguments as the function's parameters when they are plain: positional, defaults at the end.
 * Fills call[1...]; returns the number of parameters, or -1 when binding needs the interpreter. */
static inline Py_ssize_t
bind_plain(PyObject *fn, PyObject *const *args, Py_ssize_t nargs, PyObject **call)
{
    PyObject *self = NULL;
    if (PyMethod_Check(fn)) {
        self = PyMethod_GET_SELF(fn);
        fn = PyMethod_GET_FUNCTION(fn);
    }
    if (!PyFunction_Check(fn) || ((PyFunctionObject *)fn)->vectorcall != plain_vectorcall) {
        return -1;
    }
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(fn);
    Py_ssize_t given = nargs + (self != NULL), want = code->co_argcount;
    if (code->co_flags & (CO_VARARGS | CO_VARKEYWORDS) || code->co_kwonlyargcount || given > want
        || want + 3 > SMALL_CALL) {
        return -1;
    }
    PyObject *defaults = ((PyFunctionObject *)fn)->func_defaults;
    Py_ssize_t missing = want - given;
    if (missing && (defaults == NULL || PyTuple_GET_SIZE(defaults) < missing)) {
        return -1;
    }
    call[0] = NULL;
    call[1] = fn;
    PyObject **next = call + 2;
    if (self != NULL) {
        *next++ = self;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        *next++ = args[i];
    }
    for (Py_ssize_t i = missing; i > 0; i--) {
        *next++ = PyTuple_GET_ITEM(defaults, PyTuple_GET_SIZE(defaults) - i);
    }
    return want;
}

/* Serves the call from an entry without making the function's own frame. 1, 0 or -1 as find_entry. */
static int
call_entry(Compiled *self, PyObject *const *args, size_t nargsf, PyObject **result)
{
    PyObject *call[SMALL_CALL];
    Py_ssize_t nargs = bind_plain(self->fn, args, PyVectorcall_NARGS(nargsf), call);
    if (nargs < 0) {
        return 0;
    }
    PyObject *func = call[1];
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(func);
    CodeState *state = get_state(code);
    if (state == NULL || state->skip || state->entries.count == 0) {
        return 0;
    }
    Entry *hit;
    PyObject *fetched, *defaults = Py_XNewRef(((PyFunctionObject *)func)->func_defaults);
    Py_INCREF(func);
    Py_INCREF(code);
    int found = find_entry(state, self, call, nargs, &hit, &fetched);
    if (found > 0) {
        *result = run_entry(hit, call, nargs, fetched, NULL, false);
    }
    Py_DECREF(code);
    Py_DECREF(func);
    Py_XDECREF(defaults);
    return found;
}

static PyObject *
compiled_vectorcall(Compiled *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (Py_EnterRecursiveCall(" while calling a compiled function")) {
        return NULL;
    }
    Compiled *outer = active_owner;
    Pending outer_pending = pending;
    active_owner = (Compiled *)Py_NewRef(self);
    pending.func = NULL;
    add_c_calls(HOOKED_CALLS);
    hook_enter();
    PyObject *result = NULL;
    int found = kwnames == NULL && !forced_eager ? call_entry(self, args, nargsf, &result) : 0;
    if (found == 0) {
        result = PyObject_Vectorcall(self->fn, args, nargsf, kwnames);
    }
    hook_leave();
    add_c_calls(-HOOKED_CALLS);
    active_owner = outer;
    pending = outer_pending;
    Py_DECREF(self);
    Py_LeaveRecursiveCall();
    return result;
}

static int
copy_metadata(PyObject *dict, PyObject *fn)
{
    static const char *const names[] = {"__module__", "__name__", "__qualname__", "__doc__", "__annotations__",
                                        "__type_params__"};
    if (PyFunction_Check(fn)) {
        PyObject *own = ((PyFunctionObject *)fn)->func_dict;
        if (own != NULL && PyDict_Update(dict, own) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        PyObject *value = PyObject_GetAttrString(fn, names[i]);
        if (value == NULL) {
            if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
                return -1;
            }
            PyErr_Clear();
            continue;
        }
        int failed = PyDict_SetItemString(dict, names[i], value);
        Py_DECREF(value);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
compiled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"fn", "handler", NULL};
    PyObject *fn, *handler;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:CompiledCallable", keywords, &fn, &handler)) {
        return NULL;
    }
    if (!PyCallable_Check(fn) || !PyCallable_Check(handler)) {
        PyErr_Format(PyExc_TypeError, "CompiledCallable expects a callable and a handler, got %.100s and %.100s",
                     Py_TYPE(fn)->tp_name, Py_TYPE(handler)->tp_name);
        return NULL;
    }
    Compiled *self = (Compiled *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->fn = Py_NewRef(fn);
    self->handler = Py_NewRef(handler);
    self->vectorcall = (vectorcallfunc)compiled_vectorcall;
    self->dict = PyDict_New();
    if (self->dict == NULL || copy_metadata(self->dict, fn) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void
drop_entries(Compiled *self)
{
    while (self->entries.count) {
        detach(self->entries.items[self->entries.count - 1]);
    }
}

static int
compiled_traverse(Compiled *self, visitproc visit, void *arg)
{
    Py_VISIT(self->fn);
    Py_VISIT(self->handler);
    Py_VISIT(self->dict);
    for (Py_ssize_t i = 0; i < self->entries.count; i++) {
        Py_VISIT(self->entries.items[i]);
    }
    return 0;
}

static int
compiled_clear(Compiled *self)
{
    drop_entries(self);
    Py_CLEAR(self->fn);
    Py_CLEAR(self->handler);
    Py_CLEAR(self->dict);
    return 0;
}

static void
compiled_dealloc(Compiled *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    compiled_clear(self);
    list_free(&self->entries);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
bind_method(PyObject *self, PyObject *obj, PyObject *type)
{
    return obj == NULL || obj == Py_None ? Py_NewRef(self) : PyMethod_New(self, obj);
}

static PyObject *
compiled_repr(Compiled *self)
{
    return PyUnicode_FromFormat("<compiled %R>", self->fn);
}

static PyMemberDef compiled_members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(Compiled, fn), READONLY, "the original callable"},
    {"handler", T_OBJECT_EX, offsetof(Compiled, handler), READONLY, "asked about functions that no entry serves"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Compiled, vectorcall), READONLY, NULL},
    {NULL},
};

static PyGetSetDef dict_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyTypeObject Compiled_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "graphlift.frame._frame.CompiledCallable",
    .tp_doc = PyDoc_STR("CompiledCallable(fn, handler): calls fn with the frame hook on for this thread."),
    .tp_basicsize = sizeof(Compiled),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_VECTORCALL
        | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = compiled_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Compiled, vectorcall),
    .tp_traverse = (traverseproc)compiled_traverse,
    .tp_clear = (inquiry)compiled_clear,
    .tp_dealloc = (destructor)compiled_dealloc,
    .tp_repr = (reprfunc)compiled_repr,
    .tp_descr_get = bind_method,
    .tp_members = compiled_members,
    .tp_getset = dict_getset,
    .tp_dictoffset = offsetof(Compiled, dict),
    .tp_weaklistoffset = offsetof(Compiled, weakrefs),
};

/* ---- Disabled --------------------------------------------------------------------------------------------- */

static PyObject *
call_off(PyObject *fn, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Compiled *saved = active_owner;
    if (saved == NULL) {
        return PyObject_Vectorcall(fn, args, nargsf, kwnames);
    }
    active_owner = NULL;
    hook_leave();
    PyObject *result = PyObject_Vectorcall(fn, args, nargsf, kwnames);
    hook_enter();
    active_owner = saved;
    return result;
}

static PyObject *
disabled_vectorcall(Disabled *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    return call_off(self->fn, args, nargsf, kwnames);
}

static PyObject *
disabled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"fn", NULL};
    PyObject *fn;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Disabled", keywords, &fn)) {
        return NULL;
    }
    if (!PyCallable_Check(fn)) {
        PyErr_Format(PyExc_TypeError, "Disabled expects a callable, got %.100s", Py_TYPE(fn)->tp_name);
        return NULL;
    }
    Disabled *self = (Disabled *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->fn = Py_NewRef(fn);
    self->vectorcall = (vectorcallfunc)disabled_vectorcall;
    self->dict = PyDict_New();
    if (self->dict == NULL || copy_metadata(self->dict, fn) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
disabled_traverse(Disabled *self, visitproc visit, void *arg)
{
    Py_VISIT(self->fn);
    Py_VISIT(self->dict);
    return 0;
}

static int
disabled_clear(Disabled *self)
{
    Py_CLEAR(self->fn);
    Py_CLEAR(self->dict);
    return 0;
}

static void
disabled_dealloc(Disabled *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    disabled_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
disabled_repr(Disabled *self)
{
    return PyUnicode_FromFormat("<disabled %R>", self->fn);
}

static PyMemberDef disabled_members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(Disabled, fn), READONLY, "the original callable"},
    {NULL},
};

static PyTypeObject Disabled_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "graphlift.frame._frame.Disabled",
    .tp_doc = PyDoc_STR("Disabled(fn): calls fn with the frame hook off for this thread."),
    .tp_basicsize = sizeof(Disabled),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = disabled_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Disabled, vectorcall),
    .tp_traverse = (traverseproc)disabled_traverse,
    .tp_clear = (inquiry)disabled_clear,
    .tp_dealloc = (destructor)disabled_dealloc,
    .tp_repr = (reprfunc)disabled_repr,
    .tp_descr_get = bind_method,
    .tp_members = disabled_members,
    .tp_getset = dict_getset,
    .tp_dictoffset = offsetof(Disabled, dict),
    .tp_weaklistoffset = offsetof(Disabled, weakrefs),
};
