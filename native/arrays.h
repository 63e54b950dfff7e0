// numpy arrays at the boundary: checked views in, new arrays out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <new>
#include <string>

#include "ops.h"

namespace wager {

namespace nb = nanobind;

template <class T, int Dims>
using View = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using Floats1 = View<const float, 1>;
using Floats2 = View<const float, 2>;
using Ints1 = View<const int32_t, 1>;
using Ints2 = View<const int32_t, 2>;
using MutableFloats2 = View<float, 2>;
using NewArray = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// An argument that must come as it is: a converted copy would hide a mistake, and an array to be
// written would be lost.
inline auto exact(const char* name) { return nb::arg(name).noconvert(); }

inline WeightKind weight_kind(const std::string& name) {
    if (name == "f32") return WeightKind::f32;
    if (name == "int8") return WeightKind::int8;
    if (name == "bf16") return WeightKind::bf16;
    require(name == "int4", "weight kind must be f32, bf16, int8 or int4");
    return WeightKind::int4;
}

// A new [rows, columns] array, not initialised, aligned to a cache line.
inline NewArray new_array(int64_t rows, int64_t columns) {
    constexpr std::align_val_t line{64};
    auto* data = static_cast<float*>(::operator new(size_t(rows * columns) * 4 + 64, line));
    nb::capsule owner(data, [](void* p) noexcept { ::operator delete(p, std::align_val_t{64}); });
    return NewArray(data, {size_t(rows), size_t(columns)}, owner);
}

}  // namespace wager
