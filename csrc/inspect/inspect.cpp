// The Python side of host/inspect.h: opens the compiled library of a family and asks it about its kernels. A module of
// its own because the libraries themselves know nothing of Python.
#include "host/inspect.h"

#include <dlfcn.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace py = pybind11;

namespace {

struct Kernel {
  int index;
  std::string name;
  int registers, static_smem, dynamic_smem_limit, local_bytes, max_threads;
  std::string source;
  int launch_threads, launch_cluster, launch_dynamic_smem;
};

class Library {
 public:
  explicit Library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
    count_ = symbol<decltype(&warpsmith_kernel_count)>("warpsmith_kernel_count");
    info_ = symbol<decltype(&warpsmith_kernel_info)>("warpsmith_kernel_info");
    occupancy_ = symbol<decltype(&warpsmith_kernel_occupancy)>("warpsmith_kernel_occupancy");
  }
  // The handle stays open: the library has entered operators into PyTorch and can never be unloaded.
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  std::vector<Kernel> kernels() const {
    std::vector<Kernel> found;
    for (int i = 0; i < count_(); ++i) {
      WarpsmithKernelInfo info{};
      if (const int status = info_(i, &info)) {
        throw std::runtime_error("cudaFuncGetAttributes failed with cudaError_t " + std::to_string(status));
      }
      found.push_back({i, std::string(info.name, static_cast<size_t>(info.name_length)), info.registers,
                       info.static_smem, info.dynamic_smem_limit, info.local_bytes, info.max_threads,
                       std::string(info.source, static_cast<size_t>(info.source_length)), info.launch_threads,
                       info.launch_cluster, info.launch_dynamic_smem});
    }
    return found;
  }

  int occupancy(int index, int threads, int dynamic_smem) const {
    if (index < 0 || index >= count_()) throw py::index_error("no kernel " + std::to_string(index));
    const int blocks = occupancy_(index, threads, dynamic_smem);
    if (blocks < 0) throw std::runtime_error("occupancy failed with cudaError_t " + std::to_string(-blocks));
    return blocks;
  }

 private:
  template <class Function>
  Function symbol(const char* name) const {
    void* address = dlsym(handle_, name);
    if (address == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<Function>(address);
  }

  void* handle_;
  decltype(&warpsmith_kernel_count) count_;
  decltype(&warpsmith_kernel_info) info_;
  decltype(&warpsmith_kernel_occupancy) occupancy_;
};

}  // namespace

PYBIND11_MODULE(warpsmith_inspect, m) {
  m.doc() = "Registers, shared memory, local memory and occupancy of compiled kernels.";
  py::class_<Kernel>(m, "Kernel")
      .def_readonly("index", &Kernel::index)
      .def_readonly("name", &Kernel::name)
      .def_readonly("registers", &Kernel::registers, "per thread")
      .def_readonly("static_smem", &Kernel::static_smem, "bytes per block")
      .def_readonly("dynamic_smem_limit", &Kernel::dynamic_smem_limit, "bytes per block, at present")
      .def_readonly("local_bytes", &Kernel::local_bytes, "bytes per thread")
      .def_readonly("max_threads", &Kernel::max_threads, "per block")
      .def_readonly("source", &Kernel::source, "the file that launches it, below csrc")
      .def_readonly("launch_threads", &Kernel::launch_threads, "per block, at its last launch; 0: there was none")
      .def_readonly("launch_cluster", &Kernel::launch_cluster, "blocks")
      .def_readonly("launch_dynamic_smem", &Kernel::launch_dynamic_smem, "bytes per block");
  py::class_<Library>(m, "Library")
      .def(py::init<const std::string&>(), py::arg("path"))
      .def("kernels", &Library::kernels, "Every kernel; needs a GPU.")
      .def("occupancy", &Library::occupancy, py::arg("index"), py::arg("threads"), py::arg("dynamic_smem") = 0,
           "Resident blocks per multiprocessor.");
}
