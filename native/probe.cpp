// Rates of this machine with the same threads and instruction set as the kernels, for benchmarks.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "arrays.h"

namespace nb = nanobind;
using namespace wager;

namespace {

struct Probe {
    const Kernels& kernels;
    const uint8_t* data;
    int64_t share;                          // bytes, or rounds, per job
    int64_t (*multiply)(int64_t, float*);
    std::atomic<int64_t> work{0};
    std::atomic<float> sink{0.0f};

    void run(int64_t job) {
        float factors[2] = {0.5f, 0.25f};
        if (data) {
            factors[0] = kernels.probe_read(data + job * share, share);
            work += share;
        } else {
            work += multiply(share, factors);
        }
        sink = factors[0];
    }
};

double per_second(const Ops& ops, Probe& probe) {
    ThreadPool pool(ops.threads());
    const Phase phase{ops.threads(), [](void* c, int64_t job) { static_cast<Probe*>(c)->run(job); }};
    pool.run(&phase, 1, &probe);
    probe.work = 0;
    const auto start = std::chrono::steady_clock::now();
    pool.run(&phase, 1, &probe);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    return double(probe.work) / seconds.count();
}

double read_rate(const Ops& ops, View<const uint8_t, 1> data) {
    Probe probe{ops.kernels(), data.data(), int64_t(data.shape(0)) / ops.threads(), nullptr};
    const nb::gil_scoped_release unlocked;
    return per_second(ops, probe);
}

double multiply_rate(const Ops& ops, const std::string& kind, int64_t rounds) {
    Probe probe{ops.kernels(), nullptr, rounds, ops.kernels().of(weight_kind(kind)).probe};
    const nb::gil_scoped_release unlocked;
    return per_second(ops, probe);
}

}  // namespace

void bind_probe(nb::module_& m) {
    m.def("read_rate", &read_rate, nb::arg("ops"), exact("data"),
          "Bytes per second that all threads read together.");
    m.def("multiply_rate", &multiply_rate, "Multiply-adds per second of all threads together.");
}
