/* Traces: the fast path for long-lived roots (a model, a function, a globals dict).
 *
 * In: a root whose subtree has just passed the walk. Out: a flat list of memory words which, while unchanged, prove
 * that walking again would give the same objects and pass the same checks.
 * Always: an entry's address is reached only through words that earlier entries have verified, and no user code runs
 * while entries are verified, so every pointer followed is alive. A trace that does not apply only costs a walk.
 *
 * A dict's version tag is unique to the dict and its content, so one word vouches for all that was looked up in it,
 * and its values are the very objects seen before ("stable": same object, not merely same address). Other containers
 * are compared item by item, and what their items held is checked again.
 */
#ifndef GRAPHLIFT_TRACE_H
#define GRAPHLIFT_TRACE_H

#include "walk.h"

/* Entries. */
enum {
    E_WORD,   /* *(uint64*)addr == value */
    E_WORD32, /* *(uint32*)addr == value */
    E_DICT,   /* like E_WORD for a version tag; on mismatch the node's lookups are repeated */
    E_TENSOR, /* tensor at addr matches leaf `node`'s spec */
    E_CONST,  /* the object at addr passes `node`'s checks of value and length */
};

typedef struct {
    const void *addr;
    uint64_t value;
    int32_t kind, node;
} Entry;

/* Work that may run user code: done last, on owned objects. */
typedef struct {
    PyObject *obj; /* borrowed: proved alive by the entries */
    int32_t node;
    int32_t load; /* 1: load `node` from obj and walk it; 0: leaf checks of `node` on obj */
} Tail;

typedef struct {
    PyObject *obj;
    int32_t slot;
} Fetch;

/* What a node's value was when recorded (borrowed; NULL: not traced). */
typedef struct {
    PyObject *obj;
    PyTypeObject *type;
} Value;

typedef struct Trace {
    PyObject *root; /* compared, not owned */
    int32_t node;
    int32_t n_entries, n_tails, n_fetches, cap_entries, cap_tails, cap_fetches;
    Entry *entries;
    Tail *tails;
    Fetch *fetches;
    Value *values; /* of the nodes of the subtree */
    int failed;        /* while recording */
} Trace;

static void trace_free(Trace *trace) {
    if (trace == NULL) return;
    PyMem_RawFree(trace->entries);
    PyMem_RawFree(trace->tails);
    PyMem_RawFree(trace->fetches);
    PyMem_RawFree(trace->values);
    PyMem_RawFree(trace);
}

/* Room for one more element, or NULL (and the recording fails). */
static void *grow(Trace *trace, void **items, int32_t *n, int32_t *cap, size_t size) {
    if (*n == *cap) {
        int32_t bigger = *cap ? *cap * 2 : 16;
        void *moved = PyMem_RawRealloc(*items, (size_t)bigger * size);
        if (moved == NULL) {
            trace->failed = 1;
            return NULL;
        }
        *items = moved;
        *cap = bigger;
    }
    return (char *)*items + (size_t)(*n)++ * size;
}

static void emit(Trace *trace, int kind, const void *addr, uint64_t value, int32_t node) {
    Entry *entry = grow(trace, (void **)&trace->entries, &trace->n_entries, &trace->cap_entries, sizeof *entry);
    if (entry != NULL) *entry = (Entry){addr, value, kind, node};
}

static void emit_word(Trace *trace, const void *addr, const void *value) {
    emit(trace, E_WORD, addr, (uint64_t)(uintptr_t)value, -1);
}

static void emit_tail(Trace *trace, PyObject *obj, int32_t node, int load) {
    Tail *tail = grow(trace, (void **)&trace->tails, &trace->n_tails, &trace->cap_tails, sizeof *tail);
    if (tail != NULL) *tail = (Tail){obj, node, load};
}

static inline int is_mutable_type(PyTypeObject *type) { return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0; }

/* The checks of an immutable value, which run no user code. */
static int constant_leaves_pass(State *st, const Node *node, PyObject *obj) {
    for (int32_t i = node->leaf_begin; i < node->leaf_end; i++) {
        const Leaf *leaf = &st->check->leaves[i];
        if ((leaf->kind == L_EQUAL || leaf->kind == L_LENGTH) && !leaf_passes(st, leaf, obj)) return 0;
    }
    return 1;
}

/* ---- recording ---- */

typedef struct {
    State *st;
    Trace *trace;
} Recorder;

/* How far the entries of one object have got. */
typedef struct {
    int typed, tagged, sized, rechecked;
} Seen;

static void need_type(Recorder *r, PyObject *obj, int stable, Seen *seen) {
    if (seen->typed || (stable && !is_mutable_type(Py_TYPE(obj)))) return;
    emit_word(r->trace, &obj->ob_type, Py_TYPE(obj));
    seen->typed = 1;
}

static void need_tag(Recorder *r, int32_t n, PyObject *dict, Seen *seen) {
    if (seen->tagged) return;
    seen->tagged = 1;
    leave_instance(dict);
    uint64_t tag = dict_version(dict);
    if (tag == 0) r->trace->failed = 1;
    emit(r->trace, E_DICT, dict_version_address(dict), tag, n);
}

static void need_recheck(Recorder *r, int32_t n, PyObject *obj, Seen *seen) {
    if (seen->rechecked) return;
    emit(r->trace, E_CONST, obj, 0, n);
    seen->rechecked = 1;
}

static void need_size(Recorder *r, PyObject *obj, Seen *seen) {
    if (seen->sized) return;
    emit(r->trace, E_WORD, &((PyVarObject *)obj)->ob_size, (uint64_t)Py_SIZE(obj), -1);
    seen->sized = 1;
}

static void record_length(Recorder *r, int32_t n, PyObject *obj, int stable, Seen *seen) {
    if (PyDict_Check(obj)) {
        if (!seen->tagged) {
            PyDictObject *mp = (PyDictObject *)obj;
            emit(r->trace, E_WORD, &mp->ma_used, (uint64_t)mp->ma_used, -1);
        }
    } else if (PyList_Check(obj)) {
        need_size(r, obj, seen);
    } else if (PyAnySet_Check(obj)) {
        emit(r->trace, E_WORD, &((PySetObject *)obj)->used, (uint64_t)PySet_GET_SIZE(obj), -1);
    } else if (!stable || !(PyTuple_Check(obj) || PyUnicode_Check(obj) || PyBytes_Check(obj))) {
        need_recheck(r, n, obj, seen);
    }
}

/* move_to_end changes an OrderedDict's order but not its version. */
static int is_ordered(PyObject *obj) { return PyDict_Check(obj) && PyODict_Check(obj); }

static int has_order(const Leaf *leaf, PyObject *dict) {
    return leaf->kind == L_KEYS && PyTuple_GET_SIZE(leaf->obj) != 0 && is_ordered(dict);
}

static int is_str_lookup(const Leaf *leaf, PyObject *dict) {
    return PyDict_Check(dict) && only_str_keys(dict) && leaf->ref < 0 && PyUnicode_CheckExact(leaf->obj);
}

static void record_leaves(Recorder *r, int32_t n, PyObject *obj, int stable, Seen *seen) {
    const Node *node = &r->st->check->nodes[n];
    int tail = 0;
    for (int32_t i = node->leaf_begin; i < node->leaf_end; i++) {
        const Leaf *leaf = &r->st->check->leaves[i];
        int may_run_code = leaf->kind == L_TENSOR_SLOW || has_order(leaf, obj) ||
                           (leaf->kind == L_HAS_KEY && !is_str_lookup(leaf, obj));
        if (may_run_code) {
            tail = 1;
            continue;
        }
        /* Repeated here because user code may have changed something since the walk. */
        if (!leaf_passes(r->st, leaf, obj)) {
            r->trace->failed = 1;
            return;
        }
        switch (leaf->kind) {
        case L_ID: /* the pointer itself has been verified, and the object is held or its death noticed */
            break;
        case L_TYPE:
            need_type(r, obj, stable, seen);
            break;
        case L_EQUAL:
            if (!stable) need_recheck(r, n, obj, seen);
            break;
        case L_LENGTH:
            need_type(r, obj, stable, seen);
            record_length(r, n, obj, stable, seen);
            break;
        case L_KEYS:
            need_type(r, obj, stable, seen);
            need_tag(r, n, obj, seen);
            break;
        case L_HAS_KEY:
            need_type(r, obj, stable, seen);
            need_tag(r, n, obj, seen);
            break;
        default: /* L_TENSOR: the spec compares the type itself */
            emit(r->trace, E_TENSOR, obj, (uint64_t)(uintptr_t)leaf->spec, n);
        }
    }
    if (tail) emit_tail(r->trace, obj, n, 0);
}

/* The child's value without running code, with entries that vouch for it; NULL where that cannot be. */
static PyObject *record_load(Recorder *r, int32_t c, PyObject *obj, int stable, Seen *seen, int *child_stable) {
    Check *check = r->st->check;
    Node *child = &check->nodes[c];
    PyObject *value = NULL, **place = NULL;
    *child_stable = 0;
    need_type(r, obj, stable, seen);
    switch (child->kind) {
    case N_INSTANCE_DICT:
        place = _PyObject_GetDictPtr(obj);
        if (place == NULL || *place == NULL || !PyDict_Check(*place)) return NULL;
        value = *place;
        emit_word(r->trace, place, value);
        *child_stable = 1; /* the dict's tag says the rest; its layout is a dict's whatever its subclass */
        return value;
    case N_DICT_ITEM:
        if (!PyDict_Check(obj) || !only_str_keys(obj) || child->ref >= 0 || !PyUnicode_CheckExact(child->key))
            return NULL;
        need_tag(r, check->nodes[c].parent, obj, seen);
        *child_stable = 1;
        value = PyDict_GetItemWithError(obj, child->key);
        if (value == NULL) PyErr_Clear();
        return value;
    case N_SEQ_ITEM:
        value = sequence_item(obj, child->index);
        if (value == NULL) return NULL;
        if (PyTuple_Check(obj) && stable) {
            *child_stable = 1;
            return value;
        }
        Py_ssize_t i = child->index < 0 ? child->index + Py_SIZE(obj) : child->index;
        need_size(r, obj, seen);
        if (PyList_Check(obj)) {
            PyListObject *list = (PyListObject *)obj;
            emit_word(r->trace, &list->ob_item, list->ob_item);
            place = &list->ob_item[i];
        } else {
            place = &((PyTupleObject *)obj)->ob_item[i];
        }
        break;
    case N_TYPE_OF:
        return (PyObject *)Py_TYPE(obj);
    case N_SLOT:
    case N_ATTR: {
        PyTypeObject *type = Py_TYPE(obj);
        find_field(child, type);
        if (child->field < 0 || (is_mutable_type(type) && child->field_version == 0)) return NULL;
        if (is_mutable_type(type)) emit(r->trace, E_WORD32, &type->tp_version_tag, child->field_version, -1);
        place = (PyObject **)((char *)obj + child->field);
        if (*place == NULL) {
            if (!child->field_none) return NULL;
            emit_word(r->trace, place, NULL);
            return Py_None;
        }
        break;
    }
    case N_CLOSURE_CELL: {
        value = closure_cell(obj, child->index);
        if (value == NULL) return NULL;
        PyFunctionObject *function = (PyFunctionObject *)obj;
        emit_word(r->trace, &function->func_closure, function->func_closure);
        emit(r->trace, E_WORD, &((PyVarObject *)function->func_closure)->ob_size,
             (uint64_t)Py_SIZE(function->func_closure), -1);
        place = &((PyTupleObject *)function->func_closure)->ob_item[child->index];
        break;
    }
    case N_CELL_CONTENTS:
        if (!PyCell_Check(obj) || PyCell_GET(obj) == NULL) return NULL;
        place = &((PyCellObject *)obj)->ob_ref;
        break;
    default: /* N_DICT_KEY, N_TENSOR_GRAD, N_TENSOR_SIZE, N_WEAK_TARGET */
        return NULL;
    }
    emit_word(r->trace, place, *place);
    return *place;
}

static void record(Recorder *r, int32_t n, PyObject *obj, int stable) {
    Trace *trace = r->trace;
    const Check *check = r->st->check;
    const Node *node = &check->nodes[n];
    Seen seen = {0, 0, 0, 0};
    trace->values[n - trace->node] = (Value){obj, Py_TYPE(obj)};
    record_leaves(r, n, obj, stable, &seen);
    if (node->slot >= 0) {
        Fetch *fetch = grow(trace, (void **)&trace->fetches, &trace->n_fetches, &trace->cap_fetches, sizeof *fetch);
        if (fetch != NULL) *fetch = (Fetch){obj, node->slot};
    }
    for (int32_t c = node->first_child; c >= 0 && !trace->failed; c = check->nodes[c].next_sibling) {
        int child_stable;
        PyObject *value = record_load(r, c, obj, stable, &seen, &child_stable);
        if (value != NULL)
            record(r, c, value, child_stable);
        else
            emit_tail(trace, obj, c, 1);
    }
}

/* ---- running ---- */

/* A value found again under its key: an equal address proves the same object only while the dict stood unchanged, so
 * what the entries take for granted is checked again. */
static int value_still_matches(State *st, const Trace *trace, int32_t n, PyObject *now) {
    const Check *check = st->check;
    const Value *before = &trace->values[n - trace->node];
    if (now != before->obj || Py_TYPE(now) != before->type) return 0;
    if (!constant_leaves_pass(st, &check->nodes[n], now)) return 0;
    if (!PyTuple_Check(now)) return 1;
    for (int32_t c = check->nodes[n].first_child; c >= 0; c = check->nodes[c].next_sibling) {
        if (check->nodes[c].kind != N_SEQ_ITEM || trace->values[c - trace->node].obj == NULL) continue;
        PyObject *item = sequence_item(now, check->nodes[c].index);
        if (item == NULL || !value_still_matches(st, trace, c, item)) return 0;
    }
    return 1;
}

/* A dict's version changed: repeat what was looked up in it. If nothing of that changed, remember the new version. */
static int dict_still_matches(State *st, const Trace *trace, Entry *entry) {
    const Check *check = st->check;
    const Node *node = &check->nodes[entry->node];
    PyObject *dict = trace->values[entry->node - trace->node].obj;
    uint64_t tag = dict_version(dict);
    if (tag == 0 || !only_str_keys(dict)) return 0;
    for (int32_t i = node->leaf_begin; i < node->leaf_end; i++) {
        const Leaf *leaf = &check->leaves[i];
        if (has_order(leaf, dict)) return 0;
        int by_tag = leaf->kind == L_LENGTH || leaf->kind == L_KEYS ||
                     (leaf->kind == L_HAS_KEY && is_str_lookup(leaf, dict));
        if (by_tag && !leaf_passes(st, leaf, dict)) return 0;
    }
    for (int32_t c = node->first_child; c >= 0; c = check->nodes[c].next_sibling) {
        if (check->nodes[c].kind != N_DICT_ITEM || trace->values[c - trace->node].obj == NULL) continue;
        PyObject *now = PyDict_GetItemWithError(dict, check->nodes[c].key);
        if (now == NULL) PyErr_Clear();
        if (now == NULL || !value_still_matches(st, trace, c, now)) return 0;
    }
    entry->value = tag;
    return 1;
}

static int entries_hold(State *st, Trace *trace) {
    for (Entry *entry = trace->entries, *end = entry + trace->n_entries; entry < end; entry++) {
        switch (entry->kind) {
        case E_WORD:
            if (*(const uint64_t *)entry->addr != entry->value) return 0;
            break;
        case E_WORD32:
            if (*(const uint32_t *)entry->addr != entry->value) return 0;
            break;
        case E_DICT:
            if (*(const uint64_t *)entry->addr != entry->value && !dict_still_matches(st, trace, entry)) return 0;
            break;
        case E_TENSOR:
            if (!tensor_matches((const TensorSpec *)(uintptr_t)entry->value, (PyObject *)entry->addr)) return 0;
            break;
        default:
            if (!constant_leaves_pass(st, &st->check->nodes[entry->node], (PyObject *)entry->addr)) return 0;
        }
    }
    return 1;
}

/* The tail may run user code, which may free this trace: only copies and owned objects are used here. */
static int tails_pass(State *st, const Trace *trace) {
    int32_t n = trace->n_tails;
    Tail few[16], *tails = n <= 16 ? few : PyMem_RawMalloc((size_t)n * sizeof *tails);
    if (tails == NULL) return 0;
    memcpy(tails, trace->tails, (size_t)n * sizeof *tails);
    for (int32_t i = 0; i < n; i++) Py_INCREF(tails[i].obj);
    int ok = 1;
    for (int32_t i = 0; i < n && ok; i++) {
        Node *node = &st->check->nodes[tails[i].node];
        if (!tails[i].load) {
            ok = leaves_pass(st, node, tails[i].obj);
            continue;
        }
        PyObject *value = load(st, node, tails[i].obj);
        ok = value != NULL && walk(st, tails[i].node, value);
        Py_XDECREF(value);
    }
    for (int32_t i = 0; i < n; i++) Py_DECREF(tails[i].obj);
    if (tails != few) PyMem_RawFree(tails);
    return ok;
}

/* 1 passed and slots filled; 0 the trace does not apply; -1 the check failed. */
static int trace_run(State *st, Trace *trace) {
    if (!entries_hold(st, trace)) return 0;
    for (int32_t i = 0; i < trace->n_fetches; i++)
        st->slots[trace->fetches[i].slot] = Py_NewRef(trace->fetches[i].obj);
    st->check->n_tails += (uint64_t)trace->n_tails;
    if (trace->n_tails && !tails_pass(st, trace)) return -1;
    return 1;
}

static Trace *trace_record(State *st, int32_t n, PyObject *root, int stable) {
    const Node *node = &st->check->nodes[n];
    Trace *trace = PyMem_RawCalloc(1, sizeof *trace);
    if (trace == NULL) return NULL;
    trace->root = root;
    trace->node = n;
    trace->values = PyMem_RawCalloc((size_t)(node->end - n), sizeof *trace->values);
    Recorder recorder = {st, trace};
    if (trace->values != NULL) record(&recorder, n, root, stable);
    if (trace->values == NULL || trace->failed) {
        trace_free(trace);
        return NULL;
    }
    return trace;
}

static void keep_trace(RootCache *cache, Trace *trace) {
    int place = cache->next_trace;
    for (int i = 0; i < TRACES_PER_ROOT; i++)
        if (cache->traces[i] != NULL && cache->traces[i]->root == trace->root) place = i;
    if (place == cache->next_trace) cache->next_trace = (place + 1) % TRACES_PER_ROOT;
    trace_free(cache->traces[place]);
    cache->traces[place] = trace;
    cache->last_hit = place;
}

static int seen_before(RootCache *cache, PyObject *root) {
    for (int i = 0; i < TRACES_PER_ROOT; i++)
        if (cache->seen[i] == root) return 1;
    cache->seen[cache->next_seen] = root;
    cache->next_seen = (cache->next_seen + 1) % TRACES_PER_ROOT;
    return 0;
}

static int may_record(RootCache *cache) { return cache->wait == 0 || --cache->wait == 0; }

/* Checks a root's subtree, by trace where one applies. `obj` is owned by the caller. */
static int check_root(State *st, int32_t n, PyObject *obj, RootCache *cache) {
    const Node *node = &st->check->nodes[n];
    if (node->first_child < 0) return walk(st, n, obj);
    int too_strict = 0;
    for (int i = 0; i < TRACES_PER_ROOT; i++) {
        int place = (cache->last_hit + i) % TRACES_PER_ROOT;
        Trace *trace = cache->traces[place];
        if (trace == NULL || trace->root != obj) continue;
        int result = trace_run(st, trace);
        if (result != 0) {
            cache->last_hit = place;
            cache->backoff = 0;
            st->check->n_trace_hits++;
            return result > 0;
        }
        too_strict = 1;
        break;
    }
    st->check->n_walks++;
    if (!walk(st, n, obj)) return 0;
    if (too_strict) { /* the trace failed but the check passes: record such roots less and less often */
        cache->backoff = cache->backoff ? (cache->backoff < 512 ? cache->backoff * 2 : 512) : 1;
        cache->wait = cache->wait ? cache->wait : cache->backoff;
    }
    if (seen_before(cache, obj) && may_record(cache) && !st->check->live->dead) {
        Trace *trace = trace_record(st, n, obj, node->kind == N_CONST);
        if (trace != NULL) {
            st->check->n_records++;
            keep_trace(cache, trace);
        }
    }
    return 1;
}

#endif
