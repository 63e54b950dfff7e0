// Tokens on their way to Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

namespace wager {

inline nanobind::object as_tuple(const std::vector<int32_t>& tokens) {
    PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(tokens.size()));
    if (tuple == nullptr) throw nanobind::python_error();
    for (size_t i = 0; i < tokens.size(); ++i)
        PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), PyLong_FromLong(tokens[i]));
    return nanobind::steal(tuple);
}

}  // namespace wager
