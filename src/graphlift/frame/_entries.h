/* The lists of compiled entries, on the code object and on its owner. Always: an entry is in both lists or in
 * neither; the owner's holds it. Part of _frame.c.
 */
#pragma once

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
