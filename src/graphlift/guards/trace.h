/* Traces: the fast path for long-lived roots (a model, a function, all constants together).
 *
 * In: a root whose subtree has just passed the walk. Out: words of memory which, while unchanged, prove that walking
 * again would give the same objects and pass the same checks; and the few checks that words cannot express.
 * Always: a word's address is reached only through words of lower levels, which have been verified by then, and no user
 * code runs meanwhile, so every pointer followed is alive. A trace that does not apply only costs a walk.
 *
 * A dict's version tag is unique to the dict and its content, so one word vouches for all that was looked up in it,
 * and its values are the very objects seen before ("stable": same object, not merely same address). Other containers
 * are compared item by item, and what their items held is checked again. A value that was seen to vary while the check
 * passed is left out, and loaded and walked at every call.
 */
#ifndef GRAPHLIFT_TRACE_H
#define GRAPHLIFT_TRACE_H

#include "walk.h"

typedef struct {
    const uint64_t *addr;
    uint64_t value;
} Word;

/* Where a word belongs: `node` is the one to blame where it changed. */
typedef struct {
    int32_t node, level;
    int is_tag; /* of the node's dict: on mismatch the lookups in it are repeated */
} Origin;

typedef struct {
    Word word;
    Origin origin;
} Recorded;

/* A check of an object that words do not express: of a tensor, or of `node`'s constant value and length. */
typedef struct {
    PyObject *obj; /* borrowed: proved alive by the words */
    const TensorSpec *spec;
    int32_t node;
} Recheck;

/* Work that may run user code: done last, on owned objects. */
typedef struct {
    PyObject *obj; /* borrowed: proved alive by the words */
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
    int32_t n_words, n_levels, n_rechecks, n_tails, n_fetches;
    int32_t cap_recorded, cap_rechecks, cap_tails, cap_fetches;
    Recorded *recorded; /* the words, while recording */
    Word *words;        /* by level, then by address */
    Origin *origins;    /* of the words */
    int32_t *level_ends;
    Recheck *rechecks;
    Tail *tails;
    Fetch *fetches;
    Value *values; /* of the nodes of the subtree */
    int failed;    /* while recording */
    int32_t culprit; /* the node whose word or value did not match */
} Trace;

static void trace_free(Trace *trace) {
    if (trace == NULL) return;
    void *blocks[] = {trace->recorded, trace->words, trace->origins, trace->level_ends,
                      trace->rechecks, trace->tails, trace->fetches, trace->values};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(blocks); i++) PyMem_RawFree(blocks[i]);
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

/* Eight bytes at an address: where the fact is smaller, its neighbours are facts as lasting. */
static void emit(Trace *trace, const void *addr, Origin origin) {
    Recorded *recorded =
        grow(trace, (void **)&trace->recorded, &trace->n_words, &trace->cap_recorded, sizeof *recorded);
    if (recorded != NULL) *recorded = (Recorded){{addr, *(const uint64_t *)addr}, origin};
}

static void emit_word(Trace *trace, int32_t level, int32_t node, const void *addr) {
    emit(trace, addr, (Origin){node, level, 0});
}

static void emit_recheck(Trace *trace, PyObject *obj, const TensorSpec *spec, int32_t node) {
    Recheck *recheck =
        grow(trace, (void **)&trace->rechecks, &trace->n_rechecks, &trace->cap_rechecks, sizeof *recheck);
    if (recheck != NULL) *recheck = (Recheck){obj, spec, node};
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

/* How far the words of one object have got; what is read from it may be read at `level`. */
typedef struct {
    int stable, typed, tagged, sized, rechecked;
    int32_t level;
} Seen;

static void need_type(Recorder *r, int32_t n, PyObject *obj, Seen *seen) {
    if (seen->typed || (seen->stable && !is_mutable_type(Py_TYPE(obj)))) return;
    emit_word(r->trace, seen->level, n, &obj->ob_type);
    seen->typed = 1;
    seen->level += !seen->stable; /* another object may be shorter */
}

static void need_tag(Recorder *r, int32_t n, PyObject *dict, Seen *seen) {
    if (seen->tagged) return;
    seen->tagged = 1;
    leave_instance(dict);
    if (dict_version(dict) == 0) r->trace->failed = 1;
    emit(r->trace, dict_version_address(dict), (Origin){n, seen->level, 1});
}

static void need_recheck(Recorder *r, int32_t n, PyObject *obj, Seen *seen) {
    if (seen->rechecked) return;
    emit_recheck(r->trace, obj, NULL, n);
    seen->rechecked = 1;
}

static void need_size(Recorder *r, int32_t n, PyObject *obj, Seen *seen) {
    if (seen->sized) return;
    emit_word(r->trace, seen->level, n, &((PyVarObject *)obj)->ob_size);
    seen->sized = 1;
}

static void record_length(Recorder *r, int32_t n, PyObject *obj, Seen *seen) {
    if (PyDict_Check(obj)) {
        if (!seen->tagged) emit_word(r->trace, seen->level, n, &((PyDictObject *)obj)->ma_used);
    } else if (PyList_Check(obj)) {
        need_size(r, n, obj, seen);
    } else if (PyAnySet_Check(obj)) {
        emit_word(r->trace, seen->level, n, &((PySetObject *)obj)->used);
    } else if (!seen->stable || !(PyTuple_Check(obj) || PyUnicode_Check(obj) || PyBytes_Check(obj))) {
        need_recheck(r, n, obj, seen);
    }
}

static void emit_dims(Trace *trace, int32_t level, int32_t n, const int64_t *now, const int64_t *want, uint64_t rank) {
    for (uint64_t i = 0; i < rank; i++)
        if (want[i] != ANY_DIM) emit_word(trace, level, n, &now[i]);
}

/* The words of a tensor that has just matched its spec; a function is asked where they do not tell. */
static void record_tensor(Recorder *r, int32_t n, PyObject *obj, const TensorSpec *spec, Seen *seen) {
    Trace *trace = r->trace;
    const void *impl = tensor_impl(obj), *history = layout.history ? AT(impl, layout.history, void *) : NULL;
    int follows = 0; /* a stride that is computed of sizes */
    for (uint64_t i = 0; i < spec->rank && spec->has_strides; i++)
        follows |= spec->dims[spec->rank + i] < 0 && spec->dims[spec->rank + i] != ANY_DIM;
    /* With a flag that is off, a tensor requires grad where it has a grad_fn. */
    int told = layout.history && (spec->requires_grad ? history != NULL && AT(history, layout.grad_flag, char) == 1
                                                      : history == NULL);
    if (follows || !told) {
        emit_recheck(trace, obj, spec, n);
        return;
    }
    if (!seen->typed) emit_word(trace, seen->level, n, &obj->ob_type);
    seen->level += !seen->stable && !seen->typed;
    seen->typed = 1;
    int32_t level = seen->level;
    emit_word(trace, level++, n, (const char *)obj + layout.impl);
    emit_word(trace, level, n, (const char *)impl + layout.keys);
    emit_word(trace, level, n, (const char *)impl + layout.type_device);
    emit_word(trace, level, n, (const char *)impl + layout.rank);
    emit_word(trace, level, n, (const char *)impl + layout.history);
    if (history != NULL)
        emit_word(trace, level + 1, n, (const void *)(((uintptr_t)history + layout.grad_flag) & ~(uintptr_t)7));
    const int64_t *sizes = impl_sizes(impl, spec->rank);
    if (spec->rank > INLINE_DIMS) emit_word(trace, level++, n, (const char *)impl + layout.rank + 8);
    emit_dims(trace, level, n, sizes, spec->dims, spec->rank);
    if (spec->has_strides)
        emit_dims(trace, level, n, impl_strides(impl, spec->rank), spec->dims + spec->rank, spec->rank);
}

/* move_to_end changes an OrderedDict's order but not its version. */
static int is_ordered(PyObject *obj) { return PyDict_Check(obj) && PyODict_Check(obj); }

static int has_order(const Leaf *leaf, PyObject *dict) {
    return leaf->kind == L_KEYS && PyTuple_GET_SIZE(leaf->obj) != 0 && is_ordered(dict);
}

static int is_str_lookup(const Leaf *leaf, PyObject *dict) {
    return PyDict_Check(dict) && only_str_keys(dict) && leaf->ref < 0 && PyUnicode_CheckExact(leaf->obj);
}

static void record_leaves(Recorder *r, int32_t n, PyObject *obj, Seen *seen) {
    const Node *node = &r->st->check->nodes[n];
    int tail = 0;
    for (int32_t i = node->leaf_begin; i < node->leaf_end; i++) {
        const Leaf *leaf = &r->st->check->leaves[i];
        /* The tag first: giving a dict a table of its own allocates. */
        if (leaf->kind == L_KEYS || (leaf->kind == L_HAS_KEY && is_str_lookup(leaf, obj))) {
            need_type(r, n, obj, seen);
            need_tag(r, n, obj, seen);
        }
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
        case L_KEYS:
        case L_HAS_KEY:
            break;
        case L_TYPE:
            need_type(r, n, obj, seen);
            break;
        case L_EQUAL:
            if (!seen->stable) need_recheck(r, n, obj, seen);
            break;
        case L_LENGTH:
            need_type(r, n, obj, seen);
            record_length(r, n, obj, seen);
            break;
        default: /* L_TENSOR: the spec compares the type itself */
            record_tensor(r, n, obj, leaf->spec, seen);
        }
    }
    if (tail) emit_tail(r->trace, obj, n, 0);
}

/* The child's value without running code, with words that vouch for it; NULL where that cannot be. `at` becomes how
 * the value may be read: whether it is stable, and from which level on. */
static PyObject *record_load(Recorder *r, int32_t c, PyObject *obj, Seen *seen, Seen *at) {
    Check *check = r->st->check;
    Trace *trace = r->trace;
    Node *child = &check->nodes[c];
    PyObject *value = NULL, **place = NULL;
    need_type(r, child->parent, obj, seen);
    int32_t level = seen->level;
    *at = (Seen){.level = level + 1};
    switch (child->kind) {
    case N_CONST:
        *at = (Seen){.stable = 1};
        return held(check, child->ref);
    case N_INSTANCE_DICT:
        place = _PyObject_GetDictPtr(obj);
        if (place == NULL || *place == NULL || !PyDict_Check(*place)) return NULL;
        at->stable = 1; /* the dict's tag says the rest; its layout is a dict's whatever its subclass */
        break;
    case N_DICT_ITEM:
        if (!PyDict_Check(obj) || !only_str_keys(obj) || child->ref >= 0 || !PyUnicode_CheckExact(child->key))
            return NULL;
        need_tag(r, child->parent, obj, seen);
        at->stable = 1;
        value = PyDict_GetItemWithError(obj, child->key);
        if (value == NULL) PyErr_Clear();
        return value;
    case N_SEQ_ITEM:
        value = sequence_item(obj, child->index);
        if (value == NULL) return NULL;
        if (PyTuple_Check(obj) && seen->stable) {
            at->stable = 1;
            return value;
        }
        Py_ssize_t i = child->index < 0 ? child->index + Py_SIZE(obj) : child->index;
        need_size(r, child->parent, obj, seen);
        if (PyList_Check(obj)) emit_word(trace, level, c, &((PyListObject *)obj)->ob_item);
        place = PyList_Check(obj) ? &((PyListObject *)obj)->ob_item[i] : &((PyTupleObject *)obj)->ob_item[i];
        level++;
        break;
    case N_TYPE_OF:
        return (PyObject *)Py_TYPE(obj);
    case N_SLOT:
    case N_ATTR: {
        PyTypeObject *type = Py_TYPE(obj);
        find_field(child, type);
        if (child->field < 0 || (is_mutable_type(type) && child->field_version == 0)) return NULL;
        if (is_mutable_type(type)) emit_word(trace, level + seen->stable, c, &type->tp_version_tag);
        place = (PyObject **)((char *)obj + child->field);
        if (*place == NULL) {
            if (!child->field_none) return NULL;
            emit_word(trace, level, c, place);
            return Py_None;
        }
        break;
    }
    case N_CLOSURE_CELL: {
        value = closure_cell(obj, child->index);
        if (value == NULL) return NULL;
        PyObject **closure = &((PyFunctionObject *)obj)->func_closure;
        emit_word(trace, level, c, closure);
        emit_word(trace, level + 1, c, &((PyVarObject *)*closure)->ob_size);
        place = &((PyTupleObject *)*closure)->ob_item[child->index];
        level += 2;
        break;
    }
    case N_CELL_CONTENTS:
        if (!PyCell_Check(obj) || PyCell_GET(obj) == NULL) return NULL;
        place = &((PyCellObject *)obj)->ob_ref;
        break;
    default: /* N_DICT_KEY, N_TENSOR_GRAD, N_TENSOR_SIZE, N_WEAK_TARGET */
        return NULL;
    }
    emit_word(trace, level, c, place);
    at->level = level + 1;
    return *place;
}

#define SEEN_TO_VARY 2

static void record(Recorder *r, int32_t n, PyObject *obj, Seen seen) {
    Trace *trace = r->trace;
    const Check *check = r->st->check;
    const Node *node = &check->nodes[n];
    trace->values[n - trace->node] = (Value){obj, Py_TYPE(obj)};
    record_leaves(r, n, obj, &seen);
    if (node->slot >= 0) {
        Fetch *fetch = grow(trace, (void **)&trace->fetches, &trace->n_fetches, &trace->cap_fetches, sizeof *fetch);
        if (fetch != NULL) *fetch = (Fetch){obj, node->slot};
    }
    for (int32_t c = node->first_child; c >= 0 && !trace->failed; c = check->nodes[c].next_sibling) {
        Seen at;
        PyObject *value = check->nodes[c].varied < SEEN_TO_VARY ? record_load(r, c, obj, &seen, &at) : NULL;
        if (value != NULL)
            record(r, c, value, at);
        else
            emit_tail(trace, obj, c, 1);
    }
}

static int by_level(const void *left, const void *right) {
    const Recorded *a = left, *b = right;
    if (a->origin.level != b->origin.level) return a->origin.level < b->origin.level ? -1 : 1;
    return a->word.addr < b->word.addr ? -1 : a->word.addr > b->word.addr;
}

/* The recorded words, sorted and apart from what is needed only where one has changed. */
static int finish_words(Trace *trace) {
    int32_t n = trace->n_words, kept = 0;
    const Recorded *recorded = trace->recorded;
    if (n) qsort(trace->recorded, (size_t)n, sizeof *recorded, by_level);
    int32_t levels = n ? recorded[n - 1].origin.level + 1 : 0;
    trace->words = PyMem_RawMalloc((size_t)n * sizeof *trace->words + 1);
    trace->origins = PyMem_RawMalloc((size_t)n * sizeof *trace->origins + 1);
    trace->level_ends = PyMem_RawCalloc((size_t)levels + 1, sizeof *trace->level_ends);
    if (trace->words == NULL || trace->origins == NULL || trace->level_ends == NULL) return 0;
    for (int32_t i = 0; i < n; i++) {
        const Origin *origin = &recorded[i].origin;
        int repeated = i > 0 && !origin->is_tag && by_level(&recorded[i - 1], &recorded[i]) == 0;
        if (!repeated) {
            trace->words[kept] = recorded[i].word;
            trace->origins[kept++] = *origin;
        }
        trace->level_ends[origin->level] = kept;
    }
    for (int32_t i = 1; i < levels; i++) /* a level without words ends where the one before does */
        if (trace->level_ends[i] == 0) trace->level_ends[i] = trace->level_ends[i - 1];
    trace->n_words = kept;
    trace->n_levels = levels;
    PyMem_RawFree(trace->recorded);
    trace->recorded = NULL;
    return 1;
}

/* ---- running ---- */

/* A value found again under its key: an equal address proves the same object only while the dict stood unchanged, so
 * what the entries take for granted is checked again. */
static int value_still_matches(State *st, Trace *trace, int32_t n, PyObject *now) {
    const Check *check = st->check;
    const Value *before = &trace->values[n - trace->node];
    trace->culprit = n;
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
static int dict_still_matches(State *st, Trace *trace, int32_t n, uint64_t *version) {
    const Check *check = st->check;
    const Node *node = &check->nodes[n];
    PyObject *dict = trace->values[n - trace->node].obj;
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
    *version = tag;
    return 1;
}

static int level_still_matches(State *st, Trace *trace, int32_t begin, int32_t end) {
    for (int32_t i = begin; i < end; i++) {
        Word *word = &trace->words[i];
        const Origin *origin = &trace->origins[i];
        if (*word->addr == word->value) continue;
        trace->culprit = origin->node;
        if (!origin->is_tag || !dict_still_matches(st, trace, origin->node, &word->value)) return 0;
    }
    return 1;
}

static int words_hold(State *st, Trace *trace) {
    const Word *words = trace->words;
    for (int32_t level = 0, begin = 0, end; level < trace->n_levels; level++, begin = end) {
        end = trace->level_ends[level];
        uint64_t changed = 0;
        for (int32_t i = begin; i < end; i++) changed |= *words[i].addr ^ words[i].value;
        if (changed && !level_still_matches(st, trace, begin, end)) return 0;
    }
    return 1;
}

static int rechecks_hold(State *st, Trace *trace) {
    for (int32_t i = 0; i < trace->n_rechecks; i++) {
        const Recheck *recheck = &trace->rechecks[i];
        trace->culprit = recheck->node;
        if (recheck->spec != NULL ? !tensor_matches(recheck->spec, recheck->obj)
                                  : !constant_leaves_pass(st, &st->check->nodes[recheck->node], recheck->obj))
            return 0;
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
    if (!words_hold(st, trace) || !rechecks_hold(st, trace)) return 0;
    for (int32_t i = 0; i < trace->n_fetches; i++)
        st->slots[trace->fetches[i].slot] = Py_NewRef(trace->fetches[i].obj);
    st->check->n_tails += (uint64_t)trace->n_tails;
    if (trace->n_tails && !tails_pass(st, trace)) return -1;
    return 1;
}

static Trace *trace_record(State *st, int32_t n, PyObject *root) {
    const Node *node = &st->check->nodes[n];
    Trace *trace = PyMem_RawCalloc(1, sizeof *trace);
    if (trace == NULL) return NULL;
    trace->root = root;
    trace->node = n;
    trace->values = PyMem_RawCalloc((size_t)(node->end - n), sizeof *trace->values);
    Recorder recorder = {st, trace};
    if (trace->values != NULL) record(&recorder, n, root, (Seen){.stable = node->kind == N_CONSTANTS});
    if (trace->values == NULL || trace->failed || !finish_words(trace)) {
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
    int32_t culprit = -1;
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
        culprit = trace->culprit;
        break;
    }
    st->check->n_walks++;
    if (!walk(st, n, obj)) return 0;
    /* The trace failed but the check passes: leave out what varies; record such roots less and less often. */
    Node *varying = culprit >= 0 ? &st->check->nodes[culprit] : NULL;
    if (varying != NULL && varying->varied < SEEN_TO_VARY && ++varying->varied == SEEN_TO_VARY) {
        cache->backoff = cache->wait = 0;
    } else if (varying != NULL) {
        cache->backoff = cache->backoff ? (cache->backoff < 512 ? cache->backoff * 2 : 512) : 1;
        cache->wait = cache->wait ? cache->wait : cache->backoff;
    }
    if (seen_before(cache, obj) && may_record(cache) && !st->check->live->dead) {
        Trace *trace = trace_record(st, n, obj);
        if (trace != NULL) {
            st->check->n_records++;
            keep_trace(cache, trace);
        }
    }
    return 1;
}

#endif
