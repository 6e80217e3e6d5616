/* Sets with the order of their history: what a table holds and where, and tables made the same.
 *
 * CPython's sets iterate and pop in the order of their tables, which depends on all that was ever put into them, and
 * copying one does not always give the same table (Objects/setobject.c).
 */
static int are_sets(PyObject *const *args, Py_ssize_t n, Py_ssize_t wanted) {
    int fit = n == wanted;
    for (Py_ssize_t i = 0; fit && i < n; i++) fit = PyAnySet_Check(args[i]);
    if (!fit) PyErr_Format(PyExc_TypeError, "expected %zd sets, found %zd arguments", wanted, n);
    return fit;
}

static int is_item(const setentry *entry) { return entry->key != NULL && entry->hash != -1; }

/* (size of the table, where pop goes on, then for each slot that was ever used: its index, with its item if it has one) */
static PyObject *set_table(PyObject *Py_UNUSED(module), PyObject *obj) {
    if (!are_sets(&obj, 1, 1)) return NULL;
    PySetObject *set = (PySetObject *)obj;
    PyObject *found = Py_BuildValue("[nn]", set->mask, set->finger);
    for (Py_ssize_t i = 0; found != NULL && i <= set->mask; i++) {
        const setentry *entry = &set->table[i];
        if (entry->key == NULL) continue;
        PyObject *place = is_item(entry) ? Py_BuildValue("(nO)", i, entry->key) : Py_BuildValue("(n)", i);
        if (place == NULL || PyList_Append(found, place) < 0) Py_CLEAR(found);
        Py_XDECREF(place);
    }
    PyObject *result = found == NULL ? NULL : PyList_AsTuple(found);
    Py_XDECREF(found);
    return result;
}

static int make_same(PySetObject *set, const PySetObject *like) {
    Py_ssize_t size = like->mask + 1, old_size = set->mask + 1;
    setentry small[PySet_MINSIZE], *old = set->table, *table = set->smalltable;
    if (size > PySet_MINSIZE && (table = PyMem_New(setentry, size)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (old == set->smalltable) {
        memcpy(small, old, sizeof small);
        old = small;
    }
    memcpy(table, like->table, size * sizeof *table);
    for (Py_ssize_t i = 0; i < size; i++) {
        if (is_item(&table[i])) Py_INCREF(table[i].key);
    }
    set->table = table;
    set->fill = like->fill;
    set->used = like->used;
    set->mask = like->mask;
    set->finger = like->finger;
    for (Py_ssize_t i = 0; i < old_size; i++) {
        if (is_item(&old[i])) Py_DECREF(old[i].key);
    }
    if (old != small) PyMem_Free(old);
    return 0;
}

static PyObject *set_become(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n) {
    if (!are_sets(args, n, 2) || (args[0] != args[1] && make_same((PySetObject *)args[0], (PySetObject *)args[1]) < 0))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *set_clone(PyObject *Py_UNUSED(module), PyObject *obj) {
    if (!are_sets(&obj, 1, 1)) return NULL;
    PyObject *made = PySet_Check(obj) ? PySet_New(NULL) : PyFrozenSet_New(NULL);
    if (made != NULL && make_same((PySetObject *)made, (PySetObject *)obj) < 0) Py_CLEAR(made);
    return made;
}
