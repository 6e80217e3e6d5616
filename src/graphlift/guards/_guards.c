/* graphlift.guards._guards: evaluates guards on a call's arguments and fetches the values its graph needs.
 *
 * In: a program built by compile.py (nodes, leaf checks, relations). Out: Check objects: check(func, *args) gives a
 * tuple of fetched values, or None.
 * Always: never raises on a call, never leaves an exception set, holds neither tensors nor user instances.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "torch_access.h"
#include "program.h"
#include "walk.h"
#include "trace.h"
#include "sizes.h"
#include "calls.h"
#include "sets.h"

/* ---- liveness: objects known by identity ---- */

static PyTypeObject Liveness_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "graphlift.guards._guards.Liveness",
    .tp_basicsize = sizeof(Liveness),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Whether every object that a check knows by identity is still alive.",
    .tp_free = PyObject_Free,
};

static PyObject *mark_dead(PyObject *self, PyObject *Py_UNUSED(weak)) {
    ((Liveness *)self)->dead = 1;
    Py_RETURN_NONE;
}

static PyMethodDef mark_dead_method = {"mark_dead", mark_dead, METH_O, NULL};

/* ---- relations ---- */

#define FEW_SLOTS 128

static int all_differ(State *st, const Relation *rel) {
    uint32_t capacity = 64;
    while (capacity < 2u * (uint32_t)rel->n) capacity *= 2;
    PyObject *few[4 * FEW_SLOTS], **table = few;
    if (capacity > Py_ARRAY_LENGTH(few) && (table = PyMem_RawMalloc(capacity * sizeof *table)) == NULL) return 0;
    memset(table, 0, capacity * sizeof *table);
    int distinct = 1;
    for (int32_t i = 0; i < rel->n && distinct; i++) {
        PyObject *obj = st->slots[rel->slots[i]];
        uint64_t hash = ((uint64_t)(uintptr_t)obj >> 4) * UINT64_C(0x9E3779B97F4A7C15);
        uint32_t place = (uint32_t)(hash >> 32) & (capacity - 1);
        while (table[place] != NULL && table[place] != obj) place = (place + 1) & (capacity - 1);
        distinct = table[place] == NULL;
        table[place] = obj;
    }
    if (table != few) PyMem_RawFree(table);
    return distinct;
}

/* Addresses that were distinct stay so: only those that have changed since the last call are compared. */
#define FEW_CHANGED 8

static int all_distinct(State *st, const Relation *rel) {
    int32_t changed[FEW_CHANGED], n_changed = 0;
    for (int32_t i = 0; i < rel->n && n_changed <= FEW_CHANGED; i++) {
        if (st->slots[rel->slots[i]] == rel->last[i]) continue;
        if (n_changed < FEW_CHANGED) changed[n_changed] = i;
        n_changed++;
    }
    if (n_changed > FEW_CHANGED) {
        if (!all_differ(st, rel)) return 0;
        for (int32_t i = 0; i < rel->n; i++) rel->last[i] = st->slots[rel->slots[i]];
        return 1;
    }
    for (int32_t k = 0; k < n_changed; k++) {
        const PyObject *obj = st->slots[rel->slots[changed[k]]];
        for (int32_t i = 0; i < rel->n; i++)
            if (i != changed[k] && st->slots[rel->slots[i]] == obj) return 0;
    }
    for (int32_t k = 0; k < n_changed; k++) rel->last[changed[k]] = st->slots[rel->slots[changed[k]]];
    return 1;
}

static int no_overlap(State *st, const Relation *rel) {
    uintptr_t few[2 * FEW_SLOTS], *spans = few;
    if (rel->n > FEW_SLOTS && (spans = PyMem_RawMalloc((size_t)rel->n * 2 * sizeof *spans)) == NULL) return 0;
    int ok = 1;
    for (int32_t i = 0; i < rel->n && ok; i++) {
        uintptr_t *span = spans + 2 * i;
        ok = tensor_span(st->slots[rel->slots[i]], &span[0], &span[1]);
        for (int32_t j = 0; j < i && j < rel->n_written && ok; j++) {
            const uintptr_t *other = spans + 2 * j;
            ok = span[1] <= other[0] || other[1] <= span[0];
        }
    }
    if (spans != few) PyMem_RawFree(spans);
    return ok;
}

static int relation_holds(State *st, const Relation *rel) {
    switch (rel->kind) {
    case R_SAME:
        return st->slots[rel->slots[0]] == st->slots[rel->slots[1]];
    case R_DISTINCT:
        return all_distinct(st, rel);
    case R_NO_OVERLAP:
        return no_overlap(st, rel);
    case R_OFFSET: {
        PyObject *first = st->slots[rel->slots[0]], *second = st->slots[rel->slots[1]];
        if (!PyObject_TypeCheck(first, layout.base) || !PyObject_TypeCheck(second, layout.base)) return 0;
        const void *a = tensor_impl(first), *b = tensor_impl(second);
        return a != NULL && b != NULL && AT(a, layout.storage, void *) == AT(b, layout.storage, void *) &&
               AT(b, layout.offset, int64_t) - AT(a, layout.offset, int64_t) == rel->distance;
    }
    case R_SIZES:
        return sizes_relate(st, rel);
    case R_GIVES:
        return calls_give(st, rel);
    default: {
        PyObject *args[FEW_SLOTS];
        for (int32_t i = 0; i < rel->n; i++) args[i] = st->slots[rel->slots[i]];
        return call_predicate(st, rel->fn, args, rel->n);
    }
    }
}

/* ---- types ---- */

static int types_match(State *st) {
    Check *check = st->check;
    for (int32_t g = 0; g < check->n_groups; g++) {
        TypeGroup *group = &check->groups[g];
        PyTypeObject *type = (PyTypeObject *)held(check, group->ref);
        if (group->version != 0 && group->version == type->tp_version_tag) continue;
        for (int32_t i = group->begin; i < group->end; i++) {
            PyObject *found = _PyType_Lookup(type, check->attrs[i].name);
            PyObject *want = check->attrs[i].ref < 0 ? NULL : held(check, check->attrs[i].ref);
            if (found != want) return 0;
        }
        group->version = type->tp_version_tag;
    }
    return 1;
}

/* ---- the check ---- */

static int globals_hold(State *st) {
    Check *check = st->check;
    if (check->global_kind == 0) return 1;
    if (check->global_kind == 1) return global_matches(&check->global);
    return call_predicate(st, check->global_slow, NULL, 0);
}

/* New reference, or NULL. */
static PyObject *load_root(const Check *check, const Node *node, PyObject *func, PyObject *const *args) {
    switch (node->kind) {
    case N_ARG:
        return Py_NewRef(args[node->index]);
    case N_FUNC:
        return Py_NewRef(func);
    case N_FUNCTION_MODE: {
        PyObject *mode = PyObject_CallFunction(held(check, node->ref), "n", node->index);
        return mode == NULL ? failed() : mode;
    }
    default: /* N_CONSTANTS */
        return Py_NewRef((PyObject *)check);
    }
}

static int roots_pass(State *st, PyObject *func, PyObject *const *args) {
    Check *check = st->check;
    for (int32_t i = 0; i < check->n_roots; i++) {
        int32_t n = check->roots[i];
        const Node *node = &check->nodes[n];
        if (check->live->dead) return 0; /* by code that an earlier root ran */
        PyObject *obj = load_root(check, node, func, args);
        if (obj == NULL) return 0;
        int ok = check_root(st, n, obj, &check->caches[i]);
        Py_DECREF(obj);
        if (!ok) return 0;
    }
    return 1;
}

static int check_passes(State *st, PyObject *func, PyObject *const *args) {
    Check *check = st->check;
    if (!globals_hold(st) || !roots_pass(st, func, args) || check->live->dead || !types_match(st)) return 0;
    for (int32_t i = 0; i < check->n_copies; i++) {
        PyObject *value = st->slots[check->copies[2 * i + 1]];
        if (value == NULL) return 0;
        st->slots[check->copies[2 * i]] = Py_NewRef(value);
    }
    for (int32_t i = 0; i < check->n_relations; i++)
        if (check->live->dead || !relation_holds(st, &check->relations[i])) return 0;
    return !check->live->dead;
}

static PyObject *check_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    Check *check = (Check *)self;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (check->live == NULL || check->live->dead || nargs != check->nargs + 1 ||
        (kwnames != NULL && PyTuple_GET_SIZE(kwnames) != 0))
        Py_RETURN_NONE;
    /* A pending exception belongs to the caller; what runs here would lose it. */
    PyObject *error_type, *error, *traceback;
    PyErr_Fetch(&error_type, &error, &traceback);
    PyObject *few[FEW_SLOTS], **slots = few, *result = NULL;
    Py_ssize_t n = check->n_slots;
    if (n > FEW_SLOTS) slots = PyMem_Malloc((size_t)n * sizeof *slots);
    if (slots != NULL) {
        memset(slots, 0, (size_t)n * sizeof *slots);
        State st = {check, slots, 0};
        Py_INCREF(self);
        if (check_passes(&st, args[0], args + 1)) {
            Py_ssize_t i = 0;
            while (i < check->n_fetch && slots[i] != NULL) i++;
            result = i == check->n_fetch ? PyTuple_New(check->n_fetch) : NULL;
            if (result != NULL) {
                memcpy(((PyTupleObject *)result)->ob_item, slots, (size_t)check->n_fetch * sizeof *slots);
                memset(slots, 0, (size_t)check->n_fetch * sizeof *slots);
            }
        }
        for (Py_ssize_t i = 0; i < n; i++) Py_XDECREF(slots[i]);
        if (slots != few) PyMem_Free(slots);
        Py_DECREF(self);
    }
    PyErr_Restore(error_type, error, traceback);
    return result != NULL ? result : Py_NewRef(Py_None);
}

static int check_traverse(Check *self, visitproc visit, void *arg) {
    for (int32_t i = 0; i < self->n_nodes; i++) Py_VISIT(self->nodes[i].key);
    for (int32_t i = 0; i < self->n_leaves; i++) Py_VISIT(self->leaves[i].obj);
    for (int32_t i = 0; i < self->n_refs; i++) {
        if (self->refs[i].weak == NULL) Py_VISIT(self->refs[i].ptr);
        Py_VISIT(self->refs[i].weak);
    }
    for (int32_t i = 0; i < self->n_relations; i++) Py_VISIT(self->relations[i].fn);
    Py_VISIT(self->global_slow);
    Py_VISIT(self->guards);
    Py_VISIT(self->fetch);
    return 0;
}

static int check_clear(Check *self) {
    if (self->live != NULL) self->live->dead = 1; /* nothing below may be used again */
    for (int32_t i = 0; i < self->n_nodes; i++) Py_CLEAR(self->nodes[i].key);
    for (int32_t i = 0; i < self->n_leaves; i++) Py_CLEAR(self->leaves[i].obj);
    for (int32_t i = 0; i < self->n_refs; i++) {
        /* Clearing may happen twice, and a weakly held object must not be taken for an owned one then. */
        if (self->refs[i].weak != NULL) self->refs[i].ptr = NULL;
        Py_CLEAR(self->refs[i].weak);
        Py_CLEAR(self->refs[i].ptr);
    }
    for (int32_t i = 0; i < self->n_attrs; i++) Py_CLEAR(self->attrs[i].name);
    for (int32_t i = 0; i < self->n_relations; i++) Py_CLEAR(self->relations[i].fn);
    Py_CLEAR(self->global_slow);
    Py_CLEAR(self->guards);
    Py_CLEAR(self->fetch);
    return 0;
}

static void check_dealloc(Check *self) {
    PyObject_GC_UnTrack(self);
    if (self->weaklist != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    check_clear(self);
    for (int32_t i = 0; i < self->n_leaves; i++) PyMem_Free(self->leaves[i].key_refs);
    for (int32_t i = 0; i < self->n_relations; i++) {
        PyMem_Free(self->relations[i].slots);
        PyMem_Free(self->relations[i].last);
        PyMem_Free(self->relations[i].program);
    }
    for (int32_t i = 0; i < self->n_roots && self->caches != NULL; i++)
        for (int t = 0; t < TRACES_PER_ROOT; t++) trace_free(self->caches[i].traces[t]);
    void *blocks[] = {self->nodes, self->leaves, self->refs,  self->roots,     self->caches,
                      self->specs, self->groups, self->attrs, self->relations, self->copies};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(blocks); i++) PyMem_Free(blocks[i]);
    Py_CLEAR(self->live);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

#include "build.h"

/* ---- module ---- */

/* set_python_side(explain, text): what explain_failure and str() call. */
static PyObject *python_explain, *python_text;

static PyObject *set_python_side(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *explain, *text;
    if (!PyArg_ParseTuple(args, "OO", &explain, &text)) return NULL;
    Py_XSETREF(python_explain, Py_NewRef(explain));
    Py_XSETREF(python_text, Py_NewRef(text));
    Py_RETURN_NONE;
}

static PyObject *check_explain(PyObject *self, PyObject *args) {
    if (python_explain == NULL) return PyUnicode_FromString("no explanation: graphlift.guards.compile is not loaded");
    return PyObject_CallFunctionObjArgs(python_explain, self, args, NULL);
}

static PyObject *check_str(PyObject *self) {
    return python_text == NULL ? PyObject_Repr(self) : PyObject_CallOneArg(python_text, self);
}

static PyObject *get_expired(Check *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(self->live == NULL || self->live->dead);
}

static PyObject *get_stats(Check *self, void *Py_UNUSED(closure)) {
    return Py_BuildValue("{s:K,s:K,s:K,s:K}", "trace_hits", (unsigned long long)self->n_trace_hits, "walks",
                         (unsigned long long)self->n_walks, "records", (unsigned long long)self->n_records,
                         "tails", (unsigned long long)self->n_tails);
}

static PyGetSetDef check_getset[] = {
    {"expired", (getter)get_expired, NULL, "An object known by identity has died: the check fails for good.", NULL},
    {"stats", (getter)get_stats, NULL, "Counts of subtrees checked by trace, by walk, and recorded; and of checks that traces leave to code.", NULL},
    {NULL},
};

static PyMemberDef check_members[] = {
    {"guards", T_OBJECT_EX, offsetof(Check, guards), READONLY, "The guards, in order."},
    {"fetch", T_OBJECT_EX, offsetof(Check, fetch), READONLY, "The sources whose values a passing call returns."},
    {"nargs", T_PYSSIZET, offsetof(Check, nargs), READONLY, "Arguments after the function."},
    {NULL},
};

static PyMethodDef check_methods[] = {
    {"explain_failure", check_explain, METH_VARARGS,
     "explain_failure(func, *args): the first guard that fails, with its source, what was expected and found."},
    {NULL},
};

static PyTypeObject Check_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "graphlift.guards._guards.Check",
    .tp_basicsize = sizeof(Check),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "check(func, *args) -> tuple of fetched values, or None if a guard fails.",
    .tp_new = check_new,
    .tp_dealloc = (destructor)check_dealloc,
    .tp_traverse = (traverseproc)check_traverse,
    .tp_clear = (inquiry)check_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Check, vectorcall),
    .tp_weaklistoffset = offsetof(Check, weaklist),
    .tp_str = check_str,
    .tp_getset = check_getset,
    .tp_members = check_members,
    .tp_methods = check_methods,
};

static PyObject *referent(PyObject *Py_UNUSED(module), PyObject *obj) {
    PyObject *target = weak_target(obj);
    return target != NULL ? target : Py_NewRef(Py_None);
}

static PyObject *same_constant(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n) {
    if (n != 2) return PyErr_Format(PyExc_TypeError, "same_constant wants 2 arguments, found %zd", n);
    return PyBool_FromLong(const_equal(args[0], args[1]));
}

static PyObject *is_unset(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n) {
    if (n != 2 || Py_TYPE(args[0]) != &PyMemberDescr_Type)
        return PyErr_Format(PyExc_TypeError, "is_unset wants a member descriptor and an object");
    PyObject *value = Py_TYPE(args[0])->tp_descr_get(args[0], args[1], (PyObject *)Py_TYPE(args[1]));
    int unset = value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError);
    Py_XDECREF(value);
    if (unset) PyErr_Clear();
    return value == NULL && !unset ? NULL : PyBool_FromLong(unset);
}

static PyObject *is_plain_access(PyObject *Py_UNUSED(module), PyObject *slot) {
    if (Py_TYPE(slot) != &PyWrapperDescr_Type) Py_RETURN_FALSE;
    void *wrapped = ((PyWrapperDescrObject *)slot)->d_wrapped;
    return PyBool_FromLong(wrapped == (void *)PyObject_GenericGetAttr || wrapped == (void *)PyObject_GenericSetAttr);
}

/* ---- what a cache of functools.lru_cache holds ----
 * Source: CPython, Modules/_functoolsmodule.c: lru_cache_tp_traverse, lru_cache_make_key, lru_list_elem. */

enum { CACHE, WRAPPED, KEYWORD_MARK, LINK_TYPE, INFO_TYPE, ATTRIBUTES, PARTS };

typedef struct {
    PyObject_HEAD
    void *prev, *next;
    Py_hash_t hash;
    PyObject *key, *result;
} CacheLink;

static int keep_last(PyObject *part, void *parts) {
    PyObject **kept = parts;
    memmove(kept, kept + 1, (PARTS - 1) * sizeof *kept);
    kept[PARTS - 1] = part;
    return 0;
}

static PyObject *cache_key(PyObject *mark, int typed, PyObject *names, PyObject *const *values, Py_ssize_t n) {
    Py_ssize_t named = PyTuple_GET_SIZE(names), plain = n - named;
    if (!typed && !named && n == 1 && (PyLong_CheckExact(values[0]) || PyUnicode_CheckExact(values[0])))
        return Py_NewRef(values[0]);
    PyObject *key = PyTuple_New(plain + (named ? 1 + 2 * named : 0) + (typed ? n : 0));
    if (key == NULL) return NULL;
    Py_ssize_t at = 0;
    for (Py_ssize_t k = 0; k < n; k++) {
        if (k == plain) PyTuple_SET_ITEM(key, at++, Py_NewRef(mark));
        if (k >= plain) PyTuple_SET_ITEM(key, at++, Py_NewRef(PyTuple_GET_ITEM(names, k - plain)));
        PyTuple_SET_ITEM(key, at++, Py_NewRef(values[k]));
    }
    for (Py_ssize_t k = 0; typed && k < n; k++) PyTuple_SET_ITEM(key, at++, Py_NewRef(Py_TYPE(values[k])));
    return key;
}

static PyObject *cached_result(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n) {
    if (n < 3 || !PyTuple_CheckExact(args[2]) || PyTuple_GET_SIZE(args[2]) > n - 3)
        return PyErr_Format(PyExc_TypeError, "cached_result wants a function, a flag, names and values");
    PyObject *parts[PARTS] = {NULL}, *fn = args[0];
    if (Py_TYPE(fn)->tp_traverse == NULL) return PyErr_Format(PyExc_LookupError, "no cache");
    Py_TYPE(fn)->tp_traverse(fn, keep_last, parts);
    PyObject *cache = parts[CACHE], *link_type = parts[LINK_TYPE];
    if (cache == NULL || !PyDict_CheckExact(cache) || !PyCallable_Check(parts[WRAPPED]) || !PyType_Check(link_type)
        || ((PyTypeObject *)link_type)->tp_basicsize != sizeof(CacheLink))
        return PyErr_Format(PyExc_LookupError, "the cache does not show");
    PyObject *key = cache_key(parts[KEYWORD_MARK], args[1] == Py_True, args[2], args + 3, n - 3);
    if (key == NULL) return NULL;
    PyObject *held = PyDict_GetItemWithError(cache, key);
    Py_DECREF(key);
    if (held == NULL) return PyErr_Occurred() ? NULL : Py_NewRef(Py_NotImplemented);
    return Py_NewRef((PyObject *)Py_TYPE(held) == link_type ? ((CacheLink *)held)->result : held);
}

static PyMethodDef module_methods[] = {
    {"cached_result", _PyCFunction_CAST(cached_result), METH_FASTCALL, "cached_result(fn, typed, names, *values): what an lru_cache holds for a call, NotImplemented for nothing"},
    {"set_python_side", set_python_side, METH_VARARGS, "set_python_side(explain, text)"},
    {"set_constant_types", set_constant_types, METH_VARARGS, "set_constant_types(value_types, tuple_types)"},
    {"set_layout", set_layout, METH_VARARGS, "set_layout(offsets..., requires_grad, data_ptr): addresses as integers"},
    {"set_state_access", set_state_access, METH_VARARGS, "set_state_access(addresses, autograd_bits, c10_path, defaults, forward_ad)"},
    {"read_tensor", read_tensor, METH_O, "read_tensor(t): what the C side sees, for verification"},
    {"same_constant", _PyCFunction_CAST(same_constant), METH_FASTCALL, "same_constant(want, got): equal in type and value, as for the guard of an equal constant"},
    {"is_unset", _PyCFunction_CAST(is_unset), METH_FASTCALL, "is_unset(slot, obj): whether the slot of the object has no value"},
    {"is_plain_access", is_plain_access, METH_O, "is_plain_access(slot): whether a class's __getattribute__, __setattr__ or __delattr__ does what object's does"},
    {"weak_target", referent, METH_O, "weak_target(ref): what a weak reference or proxy refers to, or None"},
    {"set_table", set_table, METH_O, "set_table(s): what a set's order is made of: the size of its table, where pop goes on, its slots"},
    {"set_become", _PyCFunction_CAST(set_become), METH_FASTCALL, "set_become(s, like): give a set the table of another, item for item"},
    {"set_clone", set_clone, METH_O, "set_clone(s): a new set or frozenset with the same table"},
    {"read_state", read_state, METH_NOARGS, "read_state(): what the C side sees, for verification"},
    {NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "_guards", "Guards evaluated in C.", -1, module_methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__guards(void) {
    if (PyType_Ready(&Liveness_Type) < 0 || PyType_Ready(&Check_Type) < 0) return NULL;
    PyObject *collections = PyImport_ImportModule("collections");
    deque_type = collections == NULL ? NULL : (PyTypeObject *)PyObject_GetAttrString(collections, "deque");
    Py_XDECREF(collections);
    if (deque_type == NULL) return NULL;
    PyObject *module = PyModule_Create(&module_def);
    if (module == NULL) return NULL;
    if (PyModule_AddObjectRef(module, "Check", (PyObject *)&Check_Type) < 0 || add_kinds(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
