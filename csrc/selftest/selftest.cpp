// Hands the self tests, the measurements and the faults to PyTorch: lists of names, and one run.
#include "selftest/selftest.h"

#include <torch/csrc/stable/library.h>

#include <stdexcept>

namespace warpsmith::selftest {
namespace {

template <class Entries>
std::string names_of(const Entries& entries) {
  std::string list;
  for (const auto& entry : entries) {
    if (!list.empty()) list += ',';
    list += entry.name;
  }
  return list;
}

std::string names() { return names_of(self_tests()); }
std::string measurement_names() { return names_of(measurements()); }

std::string run(std::string name) {
  for (const SelfTest& test : self_tests()) {
    if (test.name == name) return test.run();
  }
  throw std::invalid_argument("_selftest: expected name to be one of " + names() + ", got '" + name + "'");
}

double measure(std::string name) {
  for (const Measurement& measurement : measurements()) {
    if (measurement.name == name) return measurement.run();
  }
  throw std::invalid_argument("_measure: expected name to be one of " + measurement_names() + ", got '" + name + "'");
}

void commit_fault(std::string tool, int64_t address, int64_t count) {
  for (const Fault& fault : faults()) {
    if (fault.tool == tool) return fault.run(reinterpret_cast<float*>(address), static_cast<int>(count));
  }
  throw std::invalid_argument("_commit_fault: no fault for '" + tool + "'");
}

STABLE_TORCH_LIBRARY_FRAGMENT(warpsmith, m) {
  m.def("_selftest_names() -> str");
  m.def("_selftest(str name) -> str");
  m.def("_measurement_names() -> str");
  m.def("_measure(str name) -> float");
  m.def("_commit_fault(str tool, int address, int count) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CompositeExplicitAutograd, m) {
  m.impl("_selftest_names", TORCH_BOX(&names));
  m.impl("_selftest", TORCH_BOX(&run));
  m.impl("_measurement_names", TORCH_BOX(&measurement_names));
  m.impl("_measure", TORCH_BOX(&measure));
  m.impl("_commit_fault", TORCH_BOX(&commit_fault));
}

}  // namespace
}  // namespace warpsmith::selftest
