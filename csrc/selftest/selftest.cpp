// Hands the self tests to PyTorch: a list of their names, and one run.
#include "selftest/selftest.h"

#include <torch/csrc/stable/library.h>

#include <stdexcept>

namespace warpsmith::selftest {
namespace {

std::string names() {
  std::string list;
  for (const SelfTest& test : self_tests()) {
    if (!list.empty()) list += ',';
    list += test.name;
  }
  return list;
}

std::string run(std::string name) {
  for (const SelfTest& test : self_tests()) {
    if (test.name == name) return test.run();
  }
  throw std::invalid_argument("_selftest: expected name to be one of " + names() + ", got '" + name + "'");
}

STABLE_TORCH_LIBRARY_FRAGMENT(warpsmith, m) {
  m.def("_selftest_names() -> str");
  m.def("_selftest(str name) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CompositeExplicitAutograd, m) {
  m.impl("_selftest_names", TORCH_BOX(&names));
  m.impl("_selftest", TORCH_BOX(&run));
}

}  // namespace
}  // namespace warpsmith::selftest
