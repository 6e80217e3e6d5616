/* Interception of Python frames: the PEP 523 hook, the per-code cache of compiled entries, the trampoline.
 *
 * In: frames that CPython is about to run. Out: the result of a compiled replacement, or the frame's own run.
 * Always: the hook is installed only while some thread is inside a CompiledCallable, and acts only on threads
 * that are; plain CPython API and interpreter frames, nothing of torch.
 */
#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE_MODULE 1
#include <Python.h>
#include <structmember.h>
#include <stdbool.h>
#include "internal/pycore_frame.h"

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "graphlift supports CPython 3.11, 3.12 and 3.13"
#endif
#ifdef Py_GIL_DISABLED
#error "graphlift does not support the free-threaded build"
#endif

#include "_data.h"

/* ---- installing the hook ---------------------------------------------------------------------------------- */

static inline void
hook_enter(void)
{
    if (installed_count++ == 0) {
        PyInterpreterState *interp = PyInterpreterState_Get();
        _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interp);
        if (current != hook) {
            previous_eval = current;
            _PyInterpreterState_SetEvalFrameFunc(interp, hook);
        }
    }
}

static inline void
hook_leave(void)
{
    if (--installed_count == 0) {
        PyInterpreterState *interp = PyInterpreterState_Get();
        /* A hook that was put on top of ours chains to it: then it stays, and does nothing without an owner. */
        if (_PyInterpreterState_GetEvalFrameFunc(interp) == hook) {
            _PyInterpreterState_SetEvalFrameFunc(interp, previous_eval);
        }
    }
}

static inline PyObject *
run_frame(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag)
{
    _PyFrameEvalFunction next = previous_eval;
    if (next == NULL || next == _PyEval_EvalFrameDefault) {
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    }
    return next(tstate, frame, throwflag);
}

#include "_entries.h"
#include "_lookup.h"

/* ---- the hook --------------------------------------------------------------------------------------------- */

static bool
can_be_root(PyCodeObject *code)
{
    const int needed = CO_OPTIMIZED | CO_NEWLOCALS;
    return (code->co_flags & needed) == needed
        && !(code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR));
}

static PyObject *
handle_frame(PyThreadState *tstate, _PyInterpreterFrame *frame, Compiled *owner, PyCodeObject *code,
             CodeState *state, bool trampolined)
{
    PyObject *func = FRAME_FUNC(frame);
    if (frame->owner != FRAME_OWNED_BY_THREAD || func == NULL || !PyFunction_Check(func)) {
        return run_frame(tstate, frame, 0);
    }
    if (state == NULL || !state->known) {
        state = make_state(code);
        if (state == NULL) {
            return dispose(tstate, frame, NULL);
        }
        state->known = true;
        if (!can_be_root(code)) {
            state->skip = true;
            return run_frame(tstate, frame, 0);
        }
    }
    Py_ssize_t nargs = code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS)
        + !!(code->co_flags & CO_VARKEYWORDS);
    PyObject *small[SMALL_CALL];
    PyObject **call = nargs + 3 <= SMALL_CALL ? small : PyMem_Malloc((nargs + 3) * sizeof(PyObject *));
    if (call == NULL) {
        PyErr_NoMemory();
        return dispose(tstate, frame, NULL);
    }
    call[0] = NULL;
    call[1] = func;
    memcpy(call + 2, frame->localsplus, nargs * sizeof(PyObject *));

    Entry *hit = NULL;
    PyObject *fetched = NULL, *result;
    int found = find_entry(state, owner, call, nargs, &hit, &fetched);
    if (found == 0) {
        found = ask_handler(owner, code, call, nargs, &hit, &fetched);
    }
    if (found == 0) {
        result = run_frame(tstate, frame, 0);
    }
    else {
        result = found < 0 ? NULL : run_entry(hit, call, nargs, fetched, frame->localsplus, trampolined);
        result = dispose(tstate, frame, result);
    }
    if (call != small) {
        PyMem_Free(call);
    }
    return result;
}

static PyObject *
hook(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag)
{
    Compiled *owner = active_owner;
    if (owner == NULL || throwflag) {
        return run_frame(tstate, frame, throwflag);
    }
    bool trampolined = false;
    if (pending.func != NULL && pending.func == FRAME_FUNC(frame)) {
        trampolined = pending.trampoline;
        release_pending();
    }
    if (forced_eager) {
        return run_frame(tstate, frame, 0);
    }
    PyCodeObject *code = FRAME_CODE(frame);
    CodeState *state = get_state(code);
    if (state != NULL && state->skip) {
        return run_frame(tstate, frame, 0);
    }
    return handle_frame(tstate, frame, owner, code, state, trampolined);
}

#include "_callables.h"
#include "_handover.h"
#include "_callee.h"
#include "_loop.h"

/* ---- verdicts --------------------------------------------------------------------------------------------- */

static PyObject *
verdict_repr(Verdict *self)
{
    return PyUnicode_FromString(self->name);
}

static PyTypeObject Verdict_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "graphlift.frame._frame.Verdict",
    .tp_basicsize = sizeof(Verdict),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_repr = (reprfunc)verdict_repr,
};

static PyObject *
make_verdict(PyObject *module, const char *name)
{
    Verdict *self = PyObject_New(Verdict, &Verdict_Type);
    if (self != NULL) {
        self->name = name;
        if (PyModule_AddObjectRef(module, name, (PyObject *)self) < 0) {
            Py_CLEAR(self);
        }
    }
    return (PyObject *)self;
}

/* ---- module functions ------------------------------------------------------------------------------------- */

static PyCodeObject *
as_code(PyObject *value)
{
    if (PyFunction_Check(value)) {
        value = PyFunction_GET_CODE(value);
    }
    if (!PyCode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "expected a code object or a function, got %.100s", Py_TYPE(value)->tp_name);
        return NULL;
    }
    return (PyCodeObject *)value;
}

static PyObject *
frame_set_skip(PyObject *module, PyObject *value)
{
    PyCodeObject *code = as_code(value);
    CodeState *state = code ? make_state(code) : NULL;
    if (state == NULL) {
        return NULL;
    }
    state->skip = true;
    Py_RETURN_NONE;
}

static PyObject *
frame_is_skipped(PyObject *module, PyObject *value)
{
    PyCodeObject *code = as_code(value);
    if (code == NULL) {
        return NULL;
    }
    CodeState *state = get_state(code);
    return PyBool_FromLong(state != NULL && state->skip);
}

static PyObject *
frame_entries(PyObject *module, PyObject *value)
{
    PyCodeObject *code = as_code(value);
    PyObject *list = code ? PyList_New(0) : NULL;
    if (list == NULL) {
        return NULL;
    }
    CodeState *state = get_state(code);
    for (Py_ssize_t i = 0; state != NULL && i < state->entries.count; i++) {
        Entry *entry = state->entries.items[i];
        if (entry->check == NULL || (asking_owner != NULL && entry->owner != asking_owner)) {
            continue;
        }
        PyObject *pair = PyTuple_Pack(2, entry->check, entry->replacement);
        if (pair == NULL || PyList_Append(list, pair) < 0) {
            Py_XDECREF(pair);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(pair);
    }
    return list;
}

static PyObject *
frame_entry_count(PyObject *module, PyObject *value)
{
    PyCodeObject *code = as_code(value);
    if (code == NULL) {
        return NULL;
    }
    CodeState *state = get_state(code);
    return PyLong_FromSsize_t(state == NULL ? 0 : state->entries.count);
}

static PyObject *
frame_clear(PyObject *module, PyObject *value)
{
    PyCodeObject *code = as_code(value);
    if (code == NULL) {
        return NULL;
    }
    CodeState *state = get_state(code);
    if (state != NULL) {
        state->skip = state->known = false;
        while (state->entries.count) {
            detach(state->entries.items[state->entries.count - 1]);
        }
    }
    Py_RETURN_NONE;
}

static PyObject *
frame_remove_entry(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyCodeObject *code = nargs == 2 ? as_code(args[0]) : NULL;
    if (code == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "remove_entry expects code, check");
        }
        return NULL;
    }
    CodeState *state = get_state(code);
    for (Py_ssize_t i = 0; state != NULL && i < state->entries.count; i++) {
        if (state->entries.items[i]->check == args[1]) {
            detach(state->entries.items[i]);
            Py_RETURN_TRUE;
        }
    }
    Py_RETURN_FALSE;
}

static PyObject *
frame_invalidate(PyObject *module, PyObject *owner)
{
    if (!PyObject_TypeCheck(owner, &Compiled_Type)) {
        PyErr_Format(PyExc_TypeError, "expected a CompiledCallable, got %.100s", Py_TYPE(owner)->tp_name);
        return NULL;
    }
    drop_entries((Compiled *)owner);
    Py_RETURN_NONE;
}

static PyObject *
frame_call_disabled(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError, "call_disabled expects a callable");
        return NULL;
    }
    return call_off(args[0], args + 1, nargs - 1, kwnames);
}

static PyObject *
frame_set_forced_eager(PyObject *module, PyObject *value)
{
    int on = PyObject_IsTrue(value);
    if (on < 0) {
        return NULL;
    }
    forced_eager = on;
    Py_RETURN_NONE;
}

static PyObject *
frame_hook_active(PyObject *module, PyObject *unused)
{
    return PyBool_FromLong(active_owner != NULL);
}

static PyObject *
frame_current_owner(PyObject *module, PyObject *unused)
{
    Compiled *owner = active_owner != NULL ? active_owner : asking_owner;
    return Py_NewRef(owner == NULL ? Py_None : (PyObject *)owner);
}

static PyObject *
frame_installed(PyObject *module, PyObject *unused)
{
    return PyBool_FromLong(_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == hook);
}

static PyObject *
frame_dict_version(PyObject *module, PyObject *value)
{
    if (!PyDict_Check(value)) {
        PyErr_Format(PyExc_TypeError, "expected a dict, got %.100s", Py_TYPE(value)->tp_name);
        return NULL;
    }
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif
    uint64_t tag = ((PyDictObject *)value)->ma_version_tag;
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#if PY_VERSION_HEX >= 0x030D0000
    tag >>= 12;  /* watchers and counters share the word */
#elif PY_VERSION_HEX >= 0x030C0000
    tag >>= 8;
#endif
    return PyLong_FromUnsignedLongLong(tag);
}

static PyObject *
frame_type_version(PyObject *module, PyObject *value)
{
    if (!PyType_Check(value)) {
        PyErr_Format(PyExc_TypeError, "expected a type, got %.100s", Py_TYPE(value)->tp_name);
        return NULL;
    }
    PyTypeObject *type = (PyTypeObject *)value;
    bool valid = PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG);
    return PyLong_FromUnsignedLong(valid ? type->tp_version_tag : 0);
}

static PyObject *
frame_add_c_recursion(PyObject *module, PyObject *number)
{
    long by = PyLong_AsLong(number);
    return by == -1 && PyErr_Occurred() ? NULL : PyLong_FromLong(add_c_calls((int)by));
}

static PyMethodDef methods[] = {
    {"add_c_recursion", frame_add_c_recursion, METH_O, "Adds to the calls from C that this thread has left; how many those are."},
    {"set_skip", frame_set_skip, METH_O, "Never handle frames of this code object (or function)."},
    {"is_skipped", frame_is_skipped, METH_O, "Whether frames of this code object are never handled."},
    {"entries", frame_entries, METH_O, "The (check, replacement) pairs of a code object, most recently hit first; in a handler, its owner's."},
    {"entry_count", frame_entry_count, METH_O, "How many entries a code object has, of all compiled callables."},
    {"clear", frame_clear, METH_O, "Forget all entries of a code object, and whether it is skipped."},
    {"remove_entry", (PyCFunction)(void (*)(void))frame_remove_entry, METH_FASTCALL,
     "remove_entry(code, check): drop one entry; whether there was one."},
    {"invalidate", frame_invalidate, METH_O, "Drop all entries of a CompiledCallable."},
    {"call_disabled", (PyCFunction)(void (*)(void))frame_call_disabled, METH_FASTCALL | METH_KEYWORDS,
     "call_disabled(fn, *args, **kwargs): call with the hook off for this thread."},
    {"hand_over", (PyCFunction)(void (*)(void))frame_hand_over, METH_FASTCALL,
     "hand_over(code, *cells, *values): a Handover with the globals of the calling frame."},
    {"hand_over_live", (PyCFunction)(void (*)(void))frame_hand_over_live, METH_FASTCALL,
     "hand_over_live(find, local_slots, value_slots, cell_slots): a Handover read from the calling frame."},
    {"hand_over_call", (PyCFunction)(void (*)(void))frame_hand_over_call, METH_FASTCALL,
     "hand_over_call(next, rest, *cells, *values): what a stub returns after a call."},
    {"trampoline", frame_trampoline, METH_O, "Run a Handover and those it returns until a value is returned."},
    {"set_forced_eager", frame_set_forced_eager, METH_O,
     "While true, frames run as they are; what is compiled for them stays."},
    {"hook_active", frame_hook_active, METH_NOARGS, "Whether frames of this thread are being handled."},
    {"current_owner", frame_current_owner, METH_NOARGS, "The CompiledCallable this thread is in, or whose handler is running, or None."},
    {"hook_installed", frame_installed, METH_NOARGS, "Whether the interpreter calls the hook at all."},
    {"dict_version", frame_dict_version, METH_O, "A number that changes when the dict changes."},
    {"type_version", frame_type_version, METH_O, "The version tag of a type, 0 while it has none."},
    {NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "graphlift.frame._frame",
    .m_doc = "The frame hook, its code cache, and the trampoline.",
    .m_size = -1,
    .m_methods = methods,
};

/* A function of no interest but for its code, which returns None, and its way of being called. */
static int
learn_from_sample(void)
{
    PyObject *globals = PyDict_New();
    PyObject *sample = globals ? PyRun_String("lambda: None", Py_eval_input, globals, globals) : NULL;
    Py_XDECREF(globals);
    if (sample == NULL) {
        return -1;
    }
    plain_vectorcall = ((PyFunctionObject *)sample)->vectorcall;
#if PY_VERSION_HEX >= 0x030C0000
    exit_code = (PyCodeObject *)Py_NewRef(PyFunction_GET_CODE(sample));
#endif
    Py_DECREF(sample);
    return 0;
}

PyMODINIT_FUNC
PyInit__frame(void)
{
    PyTypeObject *types[] = {&Compiled_Type, &Disabled_Type, &Handover_Type, &Callee_Type, &LoopIter_Type,
                             &Entry_Type, &Verdict_Type};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (PyType_Ready(types[i]) < 0) {
            return NULL;
        }
    }
    extra_index = REQUEST_EXTRA(free_state);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "graphlift: CPython has no room left for per-code data");
        return NULL;
    }
    PyObject *module = learn_from_sample() < 0 ? NULL : PyModule_Create(&module_def);
    if (module == NULL) {
        return NULL;
    }
    skip_verdict = make_verdict(module, "SKIP");
    frozen_verdict = make_verdict(module, "FROZEN");
    if (skip_verdict == NULL || frozen_verdict == NULL
        || PyModule_AddObjectRef(module, "CompiledCallable", (PyObject *)&Compiled_Type) < 0
        || PyModule_AddObjectRef(module, "Disabled", (PyObject *)&Disabled_Type) < 0
        || PyModule_AddObjectRef(module, "Handover", (PyObject *)&Handover_Type) < 0
        || PyModule_AddObjectRef(module, "Callee", (PyObject *)&Callee_Type) < 0
        || PyModule_AddObjectRef(module, "LoopIter", (PyObject *)&LoopIter_Type) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
