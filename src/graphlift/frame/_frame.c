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

/* ---- what differs between versions ------------------------------------------------------------------------ */

#if PY_VERSION_HEX < 0x030C0000
#define FRAME_FUNC(frame) ((PyObject *)(frame)->f_func)
#define FRAME_CODE(frame) ((frame)->f_code)
#elif PY_VERSION_HEX < 0x030D0000
#define FRAME_FUNC(frame) ((frame)->f_funcobj)
#define FRAME_CODE(frame) ((frame)->f_code)
#else
#define FRAME_FUNC(frame) ((frame)->f_funcobj)
#define FRAME_CODE(frame) ((PyCodeObject *)(frame)->f_executable)
#endif

#if PY_VERSION_HEX < 0x030C0000
#define GET_EXTRA _PyCode_GetExtra
#define SET_EXTRA _PyCode_SetExtra
#define REQUEST_EXTRA _PyEval_RequestCodeExtraIndex
#else
#define GET_EXTRA PyUnstable_Code_GetExtra
#define SET_EXTRA PyUnstable_Code_SetExtra
#define REQUEST_EXTRA PyUnstable_Eval_RequestCodeExtraIndex
#endif

#if defined(__GNUC__) && defined(__linux__)
#define THREAD_LOCAL static __thread __attribute__((tls_model("initial-exec")))
#else
#define THREAD_LOCAL static _Thread_local
#endif

/* ---- data ------------------------------------------------------------------------------------------------- */

typedef struct Compiled Compiled;

/* One compiled version of a code object for one owner. The owner holds it; the code's state borrows it. */
typedef struct {
    PyObject_HEAD
    Compiled *owner;     /* borrowed, NULL once detached */
    PyCodeObject *code;  /* borrowed, NULL once detached */
    PyObject *check;     /* NULL: the marker that the owner's handler is not to be asked again */
    PyObject *replacement;
    bool hook;           /* run the replacement with the hook on */
} Entry;

typedef struct {
    Entry **items;
    Py_ssize_t count, room;
} EntryList;

typedef struct {
    bool skip;
    bool known;          /* the code was looked at once: it can be a root */
    uint64_t version;    /* changes with every change of the list */
    EntryList entries;   /* borrowed */
} CodeState;

struct Compiled {
    PyObject_HEAD
    PyObject *fn;
    PyObject *handler;
    PyObject *dict;
    PyObject *weakrefs;
    vectorcallfunc vectorcall;
    EntryList entries;   /* strong */
};

typedef struct {
    PyObject_HEAD
    PyObject *fn;
    PyObject *dict;
    PyObject *weakrefs;
    vectorcallfunc vectorcall;
} Disabled;

typedef struct {
    PyObject_HEAD
    PyObject *code;
    PyObject *globals;
    PyObject *closure;   /* a tuple of cells, or NULL */
    PyObject *args;
} Handover;

typedef struct {
    PyObject_HEAD
    const char *name;
} Verdict;

/* A call that graphlift itself is making. When the hook sees the frame of `func`, that frame holds the
 * arguments, so the references in `slots` and in `one` are dropped: values live no longer than they should. */
typedef struct {
    PyObject *func;
    PyObject **slots;
    Py_ssize_t count;
    PyObject **one;
    bool trampoline;     /* a Handover that the frame returns goes to the trampoline that made the call */
} Pending;

THREAD_LOCAL Compiled *active_owner;   /* held by the C frame that set it */
THREAD_LOCAL Pending pending;

static Py_ssize_t extra_index = -1;
static Py_ssize_t installed_count;
static _PyFrameEvalFunction previous_eval;
static vectorcallfunc plain_vectorcall; /* of every function that nobody gave another one */
static PyTypeObject Compiled_Type, Disabled_Type, Handover_Type, Entry_Type, Verdict_Type;
static PyObject *skip_verdict, *frozen_verdict;
#if PY_VERSION_HEX >= 0x030C0000
static PyCodeObject *exit_code;        /* returns None; see dispose */
#endif

static PyObject *hook(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag);
static PyObject *run_handovers(PyObject *value);

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

/* ---- entry lists ------------------------------------------------------------------------------------------ */

static int
list_insert(EntryList *list, Py_ssize_t at, Entry *entry)
{
    if (list->count == list->room) {
        Py_ssize_t room = list->room ? 2 * list->room : 4;
        Entry **items = PyMem_Realloc(list->items, room * sizeof(Entry *));
        if (items == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        list->items = items;
        list->room = room;
    }
    memmove(list->items + at + 1, list->items + at, (list->count - at) * sizeof(Entry *));
    list->items[at] = entry;
    list->count++;
    return 0;
}

static bool
list_remove(EntryList *list, Entry *entry)
{
    for (Py_ssize_t i = 0; i < list->count; i++) {
        if (list->items[i] == entry) {
            list->count--;
            memmove(list->items + i, list->items + i + 1, (list->count - i) * sizeof(Entry *));
            return true;
        }
    }
    return false;
}

static void
list_free(EntryList *list)
{
    PyMem_Free(list->items);
    list->items = NULL;
    list->count = list->room = 0;
}

static inline CodeState *
get_state(PyCodeObject *code)
{
    void *found = NULL;
    GET_EXTRA((PyObject *)code, extra_index, &found);
    return found;
}

static CodeState *
make_state(PyCodeObject *code)
{
    CodeState *state = get_state(code);
    if (state == NULL) {
        state = PyMem_Calloc(1, sizeof(CodeState));
        if (state == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        if (SET_EXTRA((PyObject *)code, extra_index, state) < 0) {
            PyMem_Free(state);
            return NULL;
        }
    }
    return state;
}

/* Takes an entry out of its code's state and its owner's list; may run destructors. */
static void
detach(Entry *entry)
{
    Compiled *owner = entry->owner;
    PyCodeObject *code = entry->code;
    entry->owner = NULL;
    entry->code = NULL;
    if (code != NULL) {
        CodeState *state = get_state(code);
        if (state != NULL && list_remove(&state->entries, entry)) {
            state->version++;
        }
    }
    if (owner != NULL && list_remove(&owner->entries, entry)) {
        Py_DECREF(entry);
    }
}

/* The code object dies: CPython frees its extra with this. */
static void
free_state(void *extra)
{
    CodeState *state = extra;
    if (state == NULL) {
        return;
    }
    while (state->entries.count) {
        Entry *entry = state->entries.items[--state->entries.count];
        entry->code = NULL;
        detach(entry);
    }
    list_free(&state->entries);
    PyMem_Free(state);
}

static Entry *
attach(PyCodeObject *code, Compiled *owner, PyObject *check, PyObject *replacement, bool with_hook)
{
    CodeState *state = make_state(code);
    if (state == NULL) {
        return NULL;
    }
    Entry *entry = PyObject_GC_New(Entry, &Entry_Type);
    if (entry == NULL) {
        return NULL;
    }
    entry->owner = owner;
    entry->code = code;
    entry->check = Py_XNewRef(check);
    entry->replacement = Py_XNewRef(replacement);
    entry->hook = with_hook;
    PyObject_GC_Track(entry);
    if (list_insert(&owner->entries, owner->entries.count, entry) < 0) {
        entry->owner = NULL;
        entry->code = NULL;
        Py_DECREF(entry);
        return NULL;
    }
    if (list_insert(&state->entries, 0, entry) < 0) {
        entry->code = NULL;
        detach(entry);
        return NULL;
    }
    state->version++;
    return entry;
}

static int
entry_traverse(Entry *self, visitproc visit, void *arg)
{
    Py_VISIT(self->check);
    Py_VISIT(self->replacement);
    return 0;
}

static int
entry_clear(Entry *self)
{
    Py_CLEAR(self->check);
    Py_CLEAR(self->replacement);
    return 0;
}

static void
entry_dealloc(Entry *self)
{
    PyObject_GC_UnTrack(self);
    entry_clear(self);
    PyObject_GC_Del(self);
}

static PyTypeObject Entry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "graphlift.frame._frame._Entry",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_dealloc = (destructor)entry_dealloc,
};

/* ---- looking up and running entries ----------------------------------------------------------------------- */

/* call[0] is scratch, call[1] the function, then `nargs` arguments, then room for the fetched values. */
enum { SMALL_CALL = 32 };

/* 1 and a new reference to the entry and the fetched values when an entry's check passes; 0; -1 on an error. */
static int
find_entry(CodeState *state, Compiled *owner, PyObject **call, Py_ssize_t nargs, Entry **hit, PyObject **fetched)
{
    int result = 0;
    Compiled *saved = active_owner;
    active_owner = NULL;
    for (Py_ssize_t i = 0; i < state->entries.count; i++) {
        Entry *entry = state->entries.items[i];
        if (entry->owner != owner || entry->check == NULL) {
            continue;
        }
        Py_INCREF(entry);
        uint64_t version = state->version;
        PyObject *values =
            PyObject_Vectorcall(entry->check, call + 1, (nargs + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        if (values != NULL && values != Py_None) {
            if (i > 0 && state->version == version) {
                memmove(state->entries.items + 1, state->entries.items, i * sizeof(Entry *));
                state->entries.items[0] = entry;
                state->version++;
            }
            *hit = entry;
            *fetched = values;
            result = 1;
            break;
        }
        Py_DECREF(entry);
        if (values == NULL) {
            result = -1;
            break;
        }
        Py_DECREF(values);
        if (state->version != version) {
            break;  /* the check changed the list under us: count this call as a miss */
        }
    }
    active_owner = saved;
    return result;
}

/* A replacement of graphlift's own making does not show in tracebacks, unless it is itself what failed. */
static void
hide_replacement(PyObject *replacement)
{
    if (!PyFunction_Check(replacement)) {
        return;
    }
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(replacement);
    PyObject *start = code->co_filename;
    if (!PyUnicode_Check(start) || PyUnicode_GET_LENGTH(start) < 10 || PyUnicode_KIND(start) != PyUnicode_1BYTE_KIND
        || memcmp(PyUnicode_1BYTE_DATA(start), "<graphlift", 10) != 0) {
        return;
    }
#if PY_VERSION_HEX < 0x030C0000
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
#else
    PyObject *value = PyErr_GetRaisedException();
    PyObject *tb = value ? PyException_GetTraceback(value) : NULL;
#endif
    if (tb != NULL && PyTraceBack_Check(tb)) {
        PyTracebackObject *first = (PyTracebackObject *)tb;
        PyCodeObject *top = PyFrame_GetCode(first->tb_frame);
        PyObject *next = (PyObject *)first->tb_next;
        if (top == code && next != NULL) {
#if PY_VERSION_HEX < 0x030C0000
            Py_SETREF(tb, Py_NewRef(next));
#else
            PyException_SetTraceback(value, next);
#endif
        }
        Py_DECREF(top);
    }
#if PY_VERSION_HEX < 0x030C0000
    PyErr_Restore(type, value, tb);
#else
    Py_XDECREF(tb);
    PyErr_SetRaisedException(value);
#endif
}

static inline void
release_pending(void)
{
    Pending mine = pending;
    pending.func = NULL;
    for (Py_ssize_t i = 0; i < mine.count; i++) {
        Py_CLEAR(mine.slots[i]);
    }
    if (mine.one != NULL) {
        Py_CLEAR(*mine.one);
    }
}

/* Runs the replacement. `owned`: slots whose references the replacement's frame takes over, NULL for none.
 * Steals the references to the entry and the fetched values. Outside a trampoline a Handover is run at once. */
static PyObject *
run_entry(Entry *entry, PyObject **call, Py_ssize_t nargs, PyObject *fetched, PyObject **owned, bool trampolined)
{
    PyObject *replacement = Py_NewRef(entry->replacement);
    Compiled *saved = active_owner;
    Pending outer = pending;
    call[nargs + 2] = fetched;
    if (entry->hook) {
        pending = (Pending){replacement, owned, owned != NULL ? nargs : 0, &fetched, false};
    }
    else {
        active_owner = NULL;
    }
    Py_DECREF(entry);
    PyObject *result =
        PyObject_Vectorcall(replacement, call + 1, (nargs + 2) | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    pending = outer;
    if (result == NULL) {
        hide_replacement(replacement);
    }
    Py_XDECREF(fetched);
    Py_DECREF(replacement);
    active_owner = saved;
    if (!trampolined && result != NULL && Py_IS_TYPE(result, &Handover_Type)) {
        result = run_handovers(result);
    }
    return result;
}

/* Ends a frame that was not run. Until 3.11 the caller clears it; from 3.12 on the evaluator does, so it is
 * given code that only returns. Takes and returns the result (NULL: an exception is set). */
static PyObject *
dispose(PyThreadState *tstate, _PyInterpreterFrame *frame, PyObject *result)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *error = result == NULL ? PyErr_GetRaisedException() : NULL;
    PyCodeObject *old = FRAME_CODE(frame);
#if PY_VERSION_HEX < 0x030D0000
    frame->f_code = (PyCodeObject *)Py_NewRef(exit_code);
    frame->prev_instr = _PyCode_CODE(exit_code);       /* its RESUME: the return comes next */
#else
    frame->f_executable = Py_NewRef(exit_code);
    frame->instr_ptr = _PyCode_CODE(exit_code) + 1;
#endif
    Py_DECREF(old);
    PyObject *none = _PyEval_EvalFrameDefault(tstate, frame, 0);
    if (none == NULL) {
        Py_XDECREF(error);
        Py_XDECREF(result);
        return NULL;
    }
    Py_DECREF(none);
    if (error != NULL) {
        PyErr_SetRaisedException(error);
    }
#endif
    return result;
}

static Py_ssize_t
count_entries(CodeState *state, Compiled *owner, bool *frozen)
{
    Py_ssize_t count = 0;
    *frozen = false;
    for (Py_ssize_t i = 0; state != NULL && i < state->entries.count; i++) {
        Entry *entry = state->entries.items[i];
        if (entry->owner == owner) {
            *frozen |= entry->check == NULL;
            count += entry->check != NULL;
        }
    }
    return count;
}

enum { ASK_ERROR = -1, ASK_EAGER = 0, ASK_RUN = 1 };

/* Asks the owner's handler about a function that no entry serves, and installs what it answers. */
static int
ask_handler(Compiled *owner, PyCodeObject *code, PyObject **call, Py_ssize_t nargs, Entry **hit, PyObject **fetched)
{
    bool frozen;
    Py_ssize_t recompiles = count_entries(get_state(code), owner, &frozen);
    if (frozen) {
        return ASK_EAGER;
    }
    int outcome = ASK_ERROR;
    Compiled *saved = active_owner;
    active_owner = NULL;
    PyObject *answer = NULL, *number = PyLong_FromSsize_t(recompiles), *args = PyTuple_New(nargs);
    if (number == NULL || args == NULL) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        PyTuple_SET_ITEM(args, i, Py_NewRef(call[i + 2]));
    }
    PyObject *question[] = {call[1], args, number};
    answer = PyObject_Vectorcall(owner->handler, question, 3, NULL);
    if (answer == NULL) {
        goto done;
    }
    if (answer == Py_None) {
        outcome = ASK_EAGER;
    }
    else if (answer == skip_verdict) {
        CodeState *state = make_state(code);
        if (state != NULL) {
            state->skip = true;
            outcome = ASK_EAGER;
        }
    }
    else if (answer == frozen_verdict) {
        outcome = attach(code, owner, NULL, NULL, false) == NULL ? ASK_ERROR : ASK_EAGER;
    }
    else if (PyTuple_Check(answer) && (PyTuple_GET_SIZE(answer) == 2 || PyTuple_GET_SIZE(answer) == 3)) {
        PyObject *check = PyTuple_GET_ITEM(answer, 0), *replacement = PyTuple_GET_ITEM(answer, 1);
        int with_hook = PyTuple_GET_SIZE(answer) == 3 ? PyObject_IsTrue(PyTuple_GET_ITEM(answer, 2)) : 1;
        if (with_hook < 0) {
            goto done;
        }
        if (PyFunction_Check(replacement)) {
            CodeState *own = make_state((PyCodeObject *)PyFunction_GET_CODE(replacement));
            if (own == NULL) {
                goto done;
            }
            own->skip = true;
        }
        Entry *entry = attach(code, owner, check, replacement, with_hook);
        if (entry == NULL) {
            goto done;
        }
        Py_INCREF(entry);
        PyObject *values =
            PyObject_Vectorcall(check, call + 1, (nargs + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        if (values == NULL || values == Py_None) {
            outcome = values == NULL ? ASK_ERROR : ASK_EAGER;
            Py_XDECREF(values);
            Py_DECREF(entry);
        }
        else {
            *hit = entry;
            *fetched = values;
            outcome = ASK_RUN;
        }
    }
    else {
        PyErr_Format(PyExc_TypeError, "handler returned %R, expected (check, replacement), SKIP, FROZEN or None",
                     answer);
    }
done:
    active_owner = saved;
    Py_XDECREF(answer);
    Py_XDECREF(args);
    Py_XDECREF(number);
    return outcome;
}

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
    PyCodeObject *code = FRAME_CODE(frame);
    CodeState *state = get_state(code);
    if (state != NULL && state->skip) {
        return run_frame(tstate, frame, 0);
    }
    return handle_frame(tstate, frame, owner, code, state, trampolined);
}

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
    hook_enter();
    PyObject *result = NULL;
    int found = kwnames == NULL ? call_entry(self, args, nargsf, &result) : 0;
    if (found == 0) {
        result = PyObject_Vectorcall(self->fn, args, nargsf, kwnames);
    }
    hook_leave();
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

/* ---- Handover and the trampoline -------------------------------------------------------------------------- */

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
 * `find` gets, for each local, whether it is bound, and returns the code to go on with. */
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
        PyObject *value = frame->localsplus[PyLong_AsSsize_t(PyTuple_GET_ITEM(args[1], i))];
        if (PyTuple_GET_ITEM(bound, i) == Py_True) {
            PyTuple_SET_ITEM(all, next++, Py_NewRef(value));
        }
    }
    for (Py_ssize_t i = 0; i < more; i++) {
        PyTuple_SET_ITEM(all, next++, Py_NewRef(PyTuple_GET_ITEM(values, i)));
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
        if (entry->check == NULL) {
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
frame_hook_active(PyObject *module, PyObject *unused)
{
    return PyBool_FromLong(active_owner != NULL);
}

static PyObject *
frame_current_owner(PyObject *module, PyObject *unused)
{
    return Py_NewRef(active_owner == NULL ? Py_None : (PyObject *)active_owner);
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

static PyMethodDef methods[] = {
    {"set_skip", frame_set_skip, METH_O, "Never handle frames of this code object (or function)."},
    {"is_skipped", frame_is_skipped, METH_O, "Whether frames of this code object are never handled."},
    {"entries", frame_entries, METH_O, "The (check, replacement) pairs of a code object, most recently hit first."},
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
    {"trampoline", frame_trampoline, METH_O, "Run a Handover and those it returns until a value is returned."},
    {"hook_active", frame_hook_active, METH_NOARGS, "Whether frames of this thread are being handled."},
    {"current_owner", frame_current_owner, METH_NOARGS, "The CompiledCallable this thread is in, or None."},
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
    PyTypeObject *types[] = {&Compiled_Type, &Disabled_Type, &Handover_Type, &Entry_Type, &Verdict_Type};
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
        || PyModule_AddObjectRef(module, "Handover", (PyObject *)&Handover_Type) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
