/* What differs between CPython versions, and the records of the frame extension.
 * Part of _frame.c.
 */
#pragma once

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

/* From 3.12 on, calls made from C have a limit of their own, which sys.setrecursionlimit leaves alone. Under a hook
 * every call of Python is one, and up to three with its replacement: as many more are allowed as Python's own limit
 * needs by default. Returns how many are left. */
enum { HOOKED_CALLS = 3000 };

static inline int
add_c_calls(int by)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyThreadState_Get()->c_recursion_remaining += by;
#else
    return INT_MAX;
#endif
}

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

/* A call under way; see _callee.h. */
typedef struct {
    PyObject_HEAD
    PyObject *handover;  /* NULL once it was run */
    PyObject *finish;    /* a function and operands, that makes the call's value of the callee's; or NULL */
    PyObject *attribute; /* the object, the name, the __getattr__ of a lookup that raises an AttributeError; or NULL */
    vectorcallfunc vectorcall;
    bool returns_rest;   /* the caller is a stub that can take a Callee for the call's value */
} Callee;

/* The iterator of a loop; see _loop.h. */
typedef struct {
    PyObject_HEAD
    int kind;
    PyObject *over;      /* a sequence, a LoopIter, a tuple of them, a dict; NULL at the end */
    Py_ssize_t index;
    PyObject *iterator;  /* of a dict; or NULL */
} LoopIter;

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
THREAD_LOCAL Compiled *asking_owner;   /* whose handler is running, with the hook off */
THREAD_LOCAL Pending pending;

static Py_ssize_t extra_index = -1;
static Py_ssize_t installed_count;
static bool forced_eager;              /* frames run as they are, whatever is compiled for them */
static _PyFrameEvalFunction previous_eval;
static vectorcallfunc plain_vectorcall; /* of every function that nobody gave another one */
static PyTypeObject Compiled_Type, Disabled_Type, Handover_Type, Callee_Type, LoopIter_Type, Entry_Type, Verdict_Type;
static PyObject *skip_verdict, *frozen_verdict;
#if PY_VERSION_HEX >= 0x030C0000
static PyCodeObject *exit_code;        /* returns None; see dispose */
#endif

static PyObject *hook(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag);
static PyObject *run_handovers(PyObject *value);
static PyObject *callee_vectorcall(Callee *self, PyObject *const *args, size_t nargsf, PyObject *kwnames);
