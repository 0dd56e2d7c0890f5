/* The module: its types, and the names of events. */
#include "edge.h"

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "fermata_edge", "gRPC over cleartext HTTP/2.", -1, NULL, NULL, NULL,
    NULL, NULL,
};

PyMODINIT_FUNC PyInit_fermata_edge(void)
{
    static const char *const kinds[] = {"BEGUN", "MESSAGE", "COMPRESSED", "TOO_LARGE",
                                        "ENDED", "CLOSED", "DRAINED"};
    if (session_ready() < 0)
        return PyErr_NoMemory();
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    int failed = PyModule_AddType(module, &CallType) || PyModule_AddType(module, &ConnectionType) ||
                 PyModule_AddType(module, &ServerType);
    for (int i = 0; !failed && i < (int)(sizeof kinds / sizeof *kinds); i++)
        failed = PyModule_AddIntConstant(module, kinds[i], i);
    if (failed)
        Py_CLEAR(module);
    return module;
}
