/* Building a Check from the tuples that compile.py lays out, and the module's set-up and verification functions.
 *
 * In: plain Python tuples. Out: a Check, or an exception (the only place in this extension that raises).
 * Always: a half-built Check can be deallocated.
 */
#ifndef GRAPHLIFT_BUILD_H
#define GRAPHLIFT_BUILD_H

static void *new_array(int32_t n, size_t size) { return PyMem_Calloc(n > 0 ? (size_t)n : 1, size); }

/* Allocates check->array for the items of a list and sets its count; the count stays 0 if that fails. */
#define ALLOCATE(check, array, count, list)                                                                      \
    (((check)->array = new_array((int32_t)PyList_GET_SIZE(list), sizeof *(check)->array)) == NULL               \
         ? (PyErr_NoMemory(), 0)                                                                                 \
         : ((check)->count = (int32_t)PyList_GET_SIZE(list), 1))

static int build_refs(Check *check, PyObject *list) {
    if (!ALLOCATE(check, refs, n_refs, list)) return 0;
    PyObject *callback = PyCFunction_New(&mark_dead_method, (PyObject *)check->live);
    if (callback == NULL) return 0;
    int ok = 1;
    for (int32_t i = 0; i < check->n_refs && ok; i++) {
        PyObject *obj;
        int weak;
        ok = PyArg_ParseTuple(PyList_GET_ITEM(list, i), "pO", &weak, &obj);
        if (!ok) break;
        if (!weak) {
            check->refs[i].ptr = Py_NewRef(obj);
            continue;
        }
        PyObject *target = PyObject_CallNoArgs(obj); /* the weak reference */
        ok = target != NULL;
        if (target == Py_None) {
            check->live->dead = 1;
        } else if (ok) {
            check->refs[i].weak = PyWeakref_NewRef(target, callback);
            if (check->refs[i].weak != NULL) check->refs[i].ptr = target;
            ok = check->refs[i].weak != NULL;
        }
        Py_XDECREF(target);
    }
    Py_DECREF(callback);
    return ok;
}

static void intern_key(PyObject **key) {
    if (*key != NULL && PyUnicode_CheckExact(*key)) PyUnicode_InternInPlace(key);
}

static int build_nodes(Check *check, PyObject *list) {
    if (!ALLOCATE(check, nodes, n_nodes, list)) return 0;
    int32_t n = check->n_nodes;
    for (int32_t i = 0; i < n; i++) {
        Node *node = &check->nodes[i];
        int kind;
        PyObject *key;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "iiiiiinO", &kind, &node->parent, &node->slot,
                              &node->leaf_begin, &node->leaf_end, &node->ref, &node->index, &key))
            return 0;
        node->kind = (uint8_t)kind;
        node->key = key == Py_None && kind != N_DICT_ITEM ? NULL : Py_NewRef(key);
        node->first_child = node->next_sibling = -1;
        node->end = i + 1;
        if (kind == N_DICT_ITEM && node->ref >= 0) Py_CLEAR(node->key);
        intern_key(&node->key);
        int fits = node->parent < i && node->slot < check->n_slots && node->ref < check->n_refs &&
                   node->leaf_begin <= node->leaf_end && (kind != N_ARG || node->index < check->nargs);
        if (!fits) {
            PyErr_SetString(PyExc_ValueError, "guard program: node out of range");
            return 0;
        }
    }
    for (int32_t i = n - 1; i >= 0; i--) { /* backwards, so that siblings chain in order */
        Node *node = &check->nodes[i];
        if (node->parent < 0) {
            check->n_roots++;
            continue;
        }
        Node *parent = &check->nodes[node->parent];
        node->next_sibling = parent->first_child;
        parent->first_child = i;
        if (parent->end < node->end) parent->end = node->end;
    }
    check->roots = new_array(check->n_roots, sizeof *check->roots);
    check->caches = new_array(check->n_roots, sizeof *check->caches);
    if (check->roots == NULL || check->caches == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (int32_t i = 0, root = 0; i < n; i++)
        if (check->nodes[i].parent < 0) check->roots[root++] = i;
    return 1;
}

static int build_specs(Check *check, PyObject *list) {
    if (!ALLOCATE(check, specs, n_specs, list)) return 0;
    for (int32_t i = 0; i < check->n_specs; i++) {
        TensorSpec *spec = &check->specs[i];
        int cls, requires_grad;
        unsigned long long keys, type_device, rank;
        PyObject *dims;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "iKKKO!pp", &cls, &keys, &type_device, &rank, &PyTuple_Type,
                              &dims, &spec->has_strides, &requires_grad))
            return 0;
        Py_ssize_t n = PyTuple_GET_SIZE(dims);
        if (rank > MAX_RANK || n != (Py_ssize_t)(rank * (spec->has_strides ? 2 : 1)) || cls >= check->n_refs) {
            PyErr_SetString(PyExc_ValueError, "guard program: bad tensor spec");
            return 0;
        }
        spec->cls = (PyTypeObject *)held(check, cls);
        spec->keys = keys;
        spec->type_device = type_device;
        spec->rank = rank;
        spec->requires_grad = (char)requires_grad;
        spec->all_inline = spec->has_strides && rank <= INLINE_DIMS;
        for (Py_ssize_t d = 0; d < n; d++) {
            PyObject *dim = PyTuple_GET_ITEM(dims, d);
            int64_t size = spec->dims[d] = dim == Py_None ? ANY_DIM : PyLong_AsLongLong(dim);
            if (size < 0) spec->all_inline = 0;
            if (size < 0 && size != ANY_DIM && (d < (Py_ssize_t)rank || FOLLOWED(size) >= (int64_t)rank)) {
                PyErr_SetString(PyExc_ValueError, "guard program: a stride follows no dimension");
                return 0;
            }
        }
        if (PyErr_Occurred()) return 0;
    }
    return 1;
}

static int build_leaves(Check *check, PyObject *list) {
    if (!ALLOCATE(check, leaves, n_leaves, list)) return 0;
    for (int32_t i = 0; i < check->n_leaves; i++) {
        Leaf *leaf = &check->leaves[i];
        int kind, spec, present;
        PyObject *obj, *key_refs;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "iinpOOi", &kind, &leaf->ref, &leaf->n, &present, &obj,
                              &key_refs, &spec))
            return 0;
        leaf->kind = (uint8_t)kind;
        leaf->present = (uint8_t)present;
        leaf->obj = Py_NewRef(obj);
        if (kind == L_HAS_KEY) intern_key(&leaf->obj);
        if (spec >= check->n_specs || leaf->ref >= check->n_refs) {
            PyErr_SetString(PyExc_ValueError, "guard program: leaf out of range");
            return 0;
        }
        if (spec >= 0) leaf->spec = &check->specs[spec];
        if (key_refs == Py_None) continue;
        Py_ssize_t n = PyTuple_GET_SIZE(key_refs);
        leaf->key_refs = new_array((int32_t)n, sizeof *leaf->key_refs);
        for (Py_ssize_t k = 0; leaf->key_refs != NULL && k < n; k++)
            leaf->key_refs[k] = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(key_refs, k));
    }
    return !PyErr_Occurred();
}

static int build_types(Check *check, PyObject *groups, PyObject *attrs) {
    if (!ALLOCATE(check, groups, n_groups, groups) || !ALLOCATE(check, attrs, n_attrs, attrs)) return 0;
    for (int32_t i = 0; i < check->n_groups; i++) {
        TypeGroup *group = &check->groups[i];
        if (!PyArg_ParseTuple(PyList_GET_ITEM(groups, i), "iii", &group->ref, &group->begin, &group->end)) return 0;
    }
    for (int32_t i = 0; i < check->n_attrs; i++) {
        TypeAttr *attr = &check->attrs[i];
        PyObject *name;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(attrs, i), "Ui", &name, &attr->ref)) return 0;
        attr->name = Py_NewRef(name);
        intern_key(&attr->name);
    }
    return 1;
}

static int build_relations(Check *check, PyObject *list) {
    if (!ALLOCATE(check, relations, n_relations, list)) return 0;
    for (int32_t i = 0; i < check->n_relations; i++) {
        Relation *rel = &check->relations[i];
        int kind;
        long long distance;
        PyObject *slots, *fn;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "iO!iLO", &kind, &PyTuple_Type, &slots, &rel->n_written,
                              &distance, &fn))
            return 0;
        rel->kind = (uint8_t)kind;
        rel->distance = distance;
        rel->fn = Py_NewRef(fn);
        rel->n = (int32_t)PyTuple_GET_SIZE(slots);
        rel->slots = new_array(rel->n, sizeof *rel->slots);
        rel->last = kind == R_DISTINCT ? new_array(rel->n, sizeof *rel->last) : NULL;
        if (rel->slots == NULL || (kind == R_DISTINCT && rel->last == NULL)) return PyErr_NoMemory() != NULL;
        for (int32_t s = 0; s < rel->n; s++) {
            long slot = PyLong_AsLong(PyTuple_GET_ITEM(slots, s));
            if (slot < 0 || slot >= check->n_slots) {
                PyErr_SetString(PyExc_ValueError, "guard program: relation out of range");
                return 0;
            }
            rel->slots[s] = (int32_t)slot;
        }
        if (kind == R_SIZES && !build_size_program(rel, fn)) return 0;
        if (kind == R_GIVES && !build_calls(rel, fn)) return 0;
        if (kind == R_PREDICATE && rel->n > FEW_SLOTS) {
            PyErr_SetString(PyExc_ValueError, "guard program: a predicate looks at too many values");
            return 0;
        }
    }
    return 1;
}

static int build_copies(Check *check, PyObject *list) {
    if ((check->copies = new_array((int32_t)PyList_GET_SIZE(list), 2 * sizeof *check->copies)) == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        int to, from;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "ii", &to, &from)) return 0;
        if (to < 0 || from < 0 || to >= check->n_slots || from >= check->n_slots) {
            PyErr_SetString(PyExc_ValueError, "guard program: copy out of range");
            return 0;
        }
        check->copies[2 * i] = to;
        check->copies[2 * i + 1] = from;
        check->n_copies++;
    }
    return 1;
}

static int build_global(Check *check, PyObject *global) {
    GlobalFacts *want = &check->global;
    if (global == Py_None) return 1;
    if (!PyTuple_Check(global)) {
        check->global_kind = 2;
        check->global_slow = Py_NewRef(global);
        return 1;
    }
    if (!torch_state.ready) {
        PyErr_SetString(PyExc_RuntimeError, "guard program: global state cannot be read in C");
        return 0;
    }
    check->global_kind = 1;
    unsigned long long included, excluded;
    long long level;
    if (!PyArg_ParseTuple(global, "bbbbbbbb(bb)LKK", &want->autograd, &want->default_dtype, &want->deterministic,
                          &want->deterministic_warn, &want->function_state, &want->function_modes,
                          &want->autocast_on, &want->autocast_cache, &want->autocast_dtype[0], &want->autocast_dtype[1], &level,
                          &included, &excluded))
        return 0;
    for (int d = 0; d < 2; d++)
        if (want->autocast_dtype[d] == 127) want->autocast_dtype[d] = -1; /* off */
    want->forward_ad_level = level;
    want->keys[0] = included;
    want->keys[1] = excluded;
    return 1;
}

static PyObject *check_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    PyObject *guards, *fetch, *nodes, *leaves, *refs, *specs, *groups, *attrs, *relations, *copies, *global;
    Py_ssize_t nargs, n_slots;
    if (!PyArg_ParseTuple(args, "O!O!nnO!O!O!O!O!O!O!O!O", &PyTuple_Type, &guards, &PyTuple_Type, &fetch, &nargs,
                          &n_slots, &PyList_Type, &nodes, &PyList_Type, &leaves, &PyList_Type, &refs, &PyList_Type,
                          &specs, &PyList_Type, &groups, &PyList_Type, &attrs, &PyList_Type, &relations,
                          &PyList_Type, &copies, &global))
        return NULL;
    Check *check = (Check *)type->tp_alloc(type, 0);
    if (check == NULL) return NULL;
    check->vectorcall = check_call;
    check->nargs = nargs;
    check->n_slots = n_slots;
    check->n_fetch = PyTuple_GET_SIZE(fetch);
    check->guards = Py_NewRef(guards);
    check->fetch = Py_NewRef(fetch);
    check->live = PyObject_New(Liveness, &Liveness_Type);
    if (check->live != NULL) check->live->dead = 0;
    if (check->live == NULL || !build_refs(check, refs) || !build_nodes(check, nodes) ||
        !build_specs(check, specs) || !build_leaves(check, leaves) || !build_types(check, groups, attrs) ||
        !build_relations(check, relations) || !build_copies(check, copies) || !build_global(check, global)) {
        Py_DECREF(check);
        return NULL;
    }
    return (PyObject *)check;
}

/* ---- set-up, called once by compile.py and tensors.py ---- */

static PyObject *set_constant_types(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *values, *tuples;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &values, &PyTuple_Type, &tuples)) return NULL;
    n_value_types = n_tuple_types = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values) && i < 8; i++)
        value_types[n_value_types++] = (PyTypeObject *)Py_NewRef(PyTuple_GET_ITEM(values, i));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuples) && i < 4; i++)
        tuple_types[n_tuple_types++] = (PyTypeObject *)Py_NewRef(PyTuple_GET_ITEM(tuples, i));
    Py_RETURN_NONE;
}

static PyObject *set_layout(PyObject *Py_UNUSED(module), PyObject *args) {
    unsigned long long requires_grad, data_ptr, plain_keys;
    PyObject *base, *grad, *item_sizes;
    TensorLayout new = {0};
    if (!PyArg_ParseTuple(args, "nnnnnnnnKKKOOO!", &new.impl, &new.keys, &new.rank, &new.type_device, &new.storage,
                          &new.offset, &new.history, &new.grad_flag, &requires_grad, &data_ptr, &plain_keys, &base, &grad, &PyTuple_Type,
                          &item_sizes))
        return NULL;
    new.requires_grad = (char (*)(const void *))(uintptr_t)requires_grad;
    new.data_ptr = (int32_t(*)(void *, void **))(uintptr_t)data_ptr;
    new.plain_keys = plain_keys;
    new.base = (PyTypeObject *)Py_NewRef(base);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(item_sizes) && i < MAX_DTYPES; i++)
        new.item_size[i] = (uint8_t)PyLong_AsLong(PyTuple_GET_ITEM(item_sizes, i));
    if (PyErr_Occurred()) return NULL;
    new.ready = new.requires_grad != NULL && new.data_ptr != NULL;
    layout = new;
    Py_XSETREF(grad_descriptor, Py_NewRef(grad));
    Py_RETURN_NONE;
}

static PyObject *set_state_access(PyObject *Py_UNUSED(module), PyObject *args) {
    unsigned long long a[10], raw[2];
    const char *c10_path;
    Py_ssize_t autograd_bits;
    PyObject *forward_ad;
    if (!PyArg_ParseTuple(args, "(KKKKKKKKKK)ns(KK)O!", &a[0], &a[1], &a[2], &a[3], &a[4], &a[5], &a[6], &a[7], &a[8],
                          &a[9], &autograd_bits, &c10_path, &raw[0], &raw[1], &PyDict_Type, &forward_ad))
        return NULL;
    TorchState new = {0};
    new.autograd_state = (const uint8_t *(*)(void))(uintptr_t)a[0];
    new.autograd_bits = autograd_bits;
    new.default_dtype = (int8_t(*)(void))(uintptr_t)a[1];
    new.autocast_dtype = (int8_t(*)(int8_t))(uintptr_t)a[2];
    new.autocast_cache = (char (*)(void))(uintptr_t)a[3];
    new.dispatch_modes = (int64_t(*)(void))(uintptr_t)a[4];
    new.function_modes = (int64_t(*)(void))(uintptr_t)a[5];
    new.function_state = (int8_t(*)(void))(uintptr_t)a[6];
    new.context = (const void *(*)(void))(uintptr_t)a[7];
    new.deterministic = (char (*)(const void *))(uintptr_t)a[8];
    new.deterministic_warn = (char (*)(const void *))(uintptr_t)a[9];
    new.c10 = dlopen(c10_path, RTLD_LAZY | RTLD_NOLOAD);
    memcpy(new.raw_default, raw, sizeof raw);
    new.level_name = PyUnicode_InternFromString("_current_level");
    if (new.level_name == NULL) return NULL;
    new.forward_ad = Py_NewRef(forward_ad);
    new.ready = new.c10 != NULL && dlsym(new.c10, "_ZN3c104impl26raw_local_dispatch_key_setE") != NULL;
    torch_state = new;
    return PyBool_FromLong(new.ready);
}

static PyObject *dims_tuple(const int64_t *dims, uint64_t n) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)n);
    for (uint64_t i = 0; tuple != NULL && i < n; i++)
        PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, PyLong_FromLongLong(dims[i]));
    return tuple;
}

/* (keys, masked dtype and device word, sizes, strides, requires_grad, data pointer, storage, offset) */
static PyObject *read_tensor(PyObject *Py_UNUSED(module), PyObject *tensor) {
    if (!layout.ready || !PyObject_TypeCheck(tensor, layout.base)) {
        PyErr_SetString(PyExc_TypeError, "read_tensor wants a tensor, after set_layout");
        return NULL;
    }
    void *impl = tensor_impl(tensor), *data = NULL;
    uint64_t rank = AT(impl, layout.rank, uint64_t);
    if (rank > MAX_RANK) {
        PyErr_SetString(PyExc_ValueError, "implausible rank");
        return NULL;
    }
    if (layout.data_ptr((char *)tensor + layout.impl, &data) != 0) data = NULL;
    return Py_BuildValue("KKNNNKKL", (unsigned long long)AT(impl, layout.keys, uint64_t),
                         (unsigned long long)(AT(impl, layout.type_device, uint64_t) & TYPE_DEVICE_MASK),
                         dims_tuple(impl_sizes(impl, rank), rank), dims_tuple(impl_strides(impl, rank), rank),
                         PyBool_FromLong(layout.requires_grad(impl)), (unsigned long long)(uintptr_t)data,
                         (unsigned long long)AT(impl, layout.storage, uint64_t),
                         (long long)AT(impl, layout.offset, int64_t));
}

/* (autograd bits, default dtype, deterministic, warn, function state, dispatch modes, function modes,
 *  autocast cache, (cpu, cuda autocast dtype), forward AD level, (raw included, raw excluded keys)) */
static PyObject *read_state(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(arg)) {
    const uint64_t *keys = torch_state.ready ? local_keys() : NULL;
    int64_t level = 0;
    if (keys == NULL || !read_level(&level)) {
        PyErr_SetString(PyExc_RuntimeError, "torch's state cannot be read");
        return NULL;
    }
    const void *context = torch_state.context();
    return Py_BuildValue("iiiiiLLi(ii)L(KK)", torch_state.autograd_state()[torch_state.autograd_bits] & AUTOGRAD_BITS,
                         (int)torch_state.default_dtype(), (int)torch_state.deterministic(context),
                         (int)torch_state.deterministic_warn(context), (int)torch_state.function_state(),
                         (long long)torch_state.dispatch_modes(), (long long)torch_state.function_modes(),
                         (int)torch_state.autocast_cache(), (int)torch_state.autocast_dtype(0),
                         (int)torch_state.autocast_dtype(1), (long long)level, (unsigned long long)keys[0],
                         (unsigned long long)keys[1]);
}

/* NODE_KINDS, LEAF_KINDS, RELATION_KINDS: names in the order of their numbers, for compile.py to agree with. */
static int add_kinds(PyObject *module) {
    static const char *const kinds[][2] = {
        {"NODE_KINDS", "Arg Func Const InstanceDict DictItem SeqItem DictKey TypeOf Slot Attr ClosureCell CellContents "
                       "TensorGrad TensorSize WeakTarget FunctionMode Constants"},
        {"LEAF_KINDS", "type id equal length keys has_key tensor tensor_slow"},
        {"RELATION_KINDS", "same distinct no_overlap offset predicate sizes gives"},
    };
    for (size_t i = 0; i < Py_ARRAY_LENGTH(kinds); i++)
        if (PyModule_AddStringConstant(module, kinds[i][0], kinds[i][1]) < 0) return -1;
    return 0;
}

#endif
