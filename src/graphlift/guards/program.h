/* The compiled form of a list of guards: a tree of sources with leaf checks, read-only while checks run.
 *
 * In: CPython's headers. Out: the data types shared by walk.h, trace.h and _guards.c, and version differences.
 * Always: a Program never changes after it is built, except its caches (inline caches, traces, version tags).
 */
#ifndef GRAPHLIFT_PROGRAM_H
#define GRAPHLIFT_PROGRAM_H

#include <Python.h>
#include <stdint.h>

/* Sources. Must equal NODE_KINDS in compile.py (checked at import). */
enum {
    N_ARG,
    N_FUNC,
    N_CONST,
    N_INSTANCE_DICT,
    N_DICT_ITEM,
    N_SEQ_ITEM,
    N_DICT_KEY,
    N_TYPE_OF,
    N_SLOT,
    N_ATTR,
    N_CLOSURE_CELL,
    N_CELL_CONTENTS,
    N_TENSOR_GRAD,
    N_TENSOR_SIZE,
    N_WEAK_TARGET,
    N_FUNCTION_MODE,
    N_CONSTANTS, /* the root above all N_CONST: its value is the check itself */
};

/* Leaf checks of one value. */
enum { L_TYPE, L_ID, L_EQUAL, L_LENGTH, L_KEYS, L_HAS_KEY, L_TENSOR, L_TENSOR_SLOW };

/* Relations between values already loaded. */
enum { R_SAME, R_DISTINCT, R_NO_OVERLAP, R_OFFSET, R_PREDICATE, R_SIZES, R_GIVES };

typedef struct {
    uint8_t kind;
    int16_t varied; /* how often its value alone kept a trace from applying */
    int32_t parent, first_child, next_sibling, end; /* nodes are in pre-order; end is one past the subtree */
    int32_t slot;                                   /* where the value goes, or -1 */
    int32_t leaf_begin, leaf_end;
    int32_t ref;      /* object held in refs[], or -1 */
    Py_ssize_t index; /* argument, item or cell number */
    PyObject *key;    /* strong; dict key or attribute name */
    /* Inline cache of the field behind an attribute name (see find_field). */
    PyTypeObject *field_type;
    unsigned field_version;
    uint8_t field_none; /* NULL reads as None */
    Py_ssize_t field;   /* byte offset, or -1: no plain field */
} Node;

typedef struct {
    uint8_t kind;
    uint8_t present; /* L_HAS_KEY */
    int32_t ref;     /* refs[] or -1 */
    Py_ssize_t n;    /* L_LENGTH */
    PyObject *obj;   /* strong: constant, key, tuple of keys, slow predicate */
    int32_t *key_refs; /* L_KEYS: refs[] of each key, -1 where plain */
    TensorSpec *spec;
} Leaf;

typedef struct {
    uint8_t kind;
    int32_t n, n_written;
    int32_t *slots;
    PyObject **last; /* R_DISTINCT: what was found distinct; compared only, never dereferenced */
    int64_t distance;
    PyObject *fn; /* strong */
    int64_t *program; /* R_SIZES, R_GIVES */
    int32_t n_program;
} Relation;

typedef struct {
    int32_t ref, begin, end; /* class; its entries in type_attrs */
    unsigned version;        /* tp_version_tag when the entries last held, 0 = none */
} TypeGroup;

typedef struct {
    PyObject *name; /* strong */
    int32_t ref;    /* expected object or -1 for absent */
} TypeAttr;

/* An object known by identity. `weak` is a weak reference whose callback marks the program dead, so that while the
 * program lives `ptr` cannot have been reused by another object. */
typedef struct {
    PyObject *ptr;
    PyObject *weak;
} HeldRef;

/* Shared by a check and the callbacks of its weak references. */
typedef struct {
    PyObject_HEAD
    int dead;
} Liveness;

struct Trace;

#define TRACES_PER_ROOT 8

/* Per root node: the last few objects for which the whole subtree was recorded. */
typedef struct {
    struct Trace *traces[TRACES_PER_ROOT];
    PyObject *seen[TRACES_PER_ROOT]; /* compared only, never dereferenced */
    int next_trace, next_seen, last_hit;
    int backoff, wait; /* roots that change at every call stop being recorded */
} RootCache;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *weaklist;
    Liveness *live;
    int32_t n_nodes, n_leaves, n_refs, n_roots, n_specs, n_groups, n_attrs, n_relations, n_copies;
    Py_ssize_t nargs, n_fetch, n_slots;
    Node *nodes;
    Leaf *leaves;
    HeldRef *refs;
    int32_t *roots;
    RootCache *caches;
    TensorSpec *specs;
    TypeGroup *groups;
    TypeAttr *attrs;
    Relation *relations;
    int32_t *copies; /* pairs: slot to fill, slot to copy from */
    int global_kind; /* 0 none, 1 in C, 2 by Python */
    GlobalFacts global;
    PyObject *global_slow; /* strong */
    PyObject *guards, *fetch;
    uint64_t n_trace_hits, n_walks, n_records, n_tails;
} Check;

/* What one evaluation carries. */
typedef struct {
    Check *check;
    PyObject **slots; /* strong or NULL */
    int impure;       /* user code may have run */
} State;

#if PY_VERSION_HEX >= 0x030E0000
#error "dict version tags are gone in 3.14: use watchers"
#endif
#ifdef Py_GIL_DISABLED
#error "checks read containers under the GIL: free-threaded builds are not supported"
#endif

/* The dict's version, or 0 where a change might not alter it: on 3.13 a store through an instance whose values are
 * embedded in it leaves the tag alone. */
static inline uint64_t dict_version(PyObject *dict) {
    PyDictObject *mp = (PyDictObject *)dict;
#if PY_VERSION_HEX >= 0x030D0000
    if (mp->ma_values != NULL) return 0;
#endif
#if PY_VERSION_HEX >= 0x030C0000
    _Py_COMP_DIAG_PUSH
    _Py_COMP_DIAG_IGNORE_DEPR_DECLS
    /* The low bits belong to watchers. */
    return mp->ma_version_tag;
    _Py_COMP_DIAG_POP
#else
    return mp->ma_version_tag;
#endif
}

/* Gives such a dict a table of its own, as an instance with many attributes has, so that its version tells changes:
 * popitem does, of an item put there where there is none. Content, order and identity stay; no user code runs.
 * (Of its stores 3.13.0 tells watchers nothing.) */
static void leave_instance(PyObject *dict) {
#if PY_VERSION_HEX >= 0x030D0000
    if (!PyDict_CheckExact(dict) || ((PyDictObject *)dict)->ma_values == NULL) return;
    int empty = ((PyDictObject *)dict)->ma_used == 0;
    PyObject *item = NULL;
    if (!empty || PyDict_SetItemString(dict, "_", Py_None) == 0) item = PyObject_CallMethod(dict, "popitem", NULL);
    if (item == NULL ||
        (!empty && PyDict_SetItem(dict, PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1)) < 0))
        PyErr_Clear();
    Py_XDECREF(item);
#endif
}

static inline uint64_t *dict_version_address(PyObject *dict) {
    _Py_COMP_DIAG_PUSH
    _Py_COMP_DIAG_IGNORE_DEPR_DECLS
    return &((PyDictObject *)dict)->ma_version_tag;
    _Py_COMP_DIAG_POP
}

/* The first fields of PyDictKeysObject, the same on 3.11 to 3.13 (pycore_dict.h). */
typedef struct {
    Py_ssize_t refcnt;
    uint8_t log2_size, log2_index_bytes, kind;
} DictKeysHead;

/* Only exact str keys: a lookup compares strings and can run no user code. */
static inline int only_str_keys(PyObject *dict) {
    return ((DictKeysHead *)((PyDictObject *)dict)->ma_keys)->kind != 0;
}

static inline PyObject *held(const Check *check, int32_t ref) { return check->refs[ref].ptr; }

#endif
