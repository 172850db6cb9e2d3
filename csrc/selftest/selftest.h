// The self tests of the device vocabulary: what a test is, and what every test needs. A test enters itself:
//
//   const SelfTestEntry entered{"warp_reduce", run};
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "host/dtype.h"
#include "host/launch.h"

namespace warpsmith::selftest {

struct SelfTest {
  std::string_view name;
  std::string (*run)();  // empty: passed; otherwise what differed
};

inline std::vector<SelfTest>& self_tests() {
  static std::vector<SelfTest> list;
  return list;
}

struct SelfTestEntry {
  SelfTestEntry(std::string_view name, std::string (*run)()) { self_tests().push_back({name, run}); }
};

// What a GPU's units can do at best, in operations a second. A measurement enters itself like a test:
//
//   const MeasurementEntry entered{"mma_f16_f32", run};
struct Measurement {
  std::string_view name;
  double (*run)();
};

inline std::vector<Measurement>& measurements() {
  static std::vector<Measurement> list;
  return list;
}

struct MeasurementEntry {
  MeasurementEntry(std::string_view name, double (*run)()) { measurements().push_back({name, run}); }
};

// What one of compute-sanitizer's tools must find, to be believed where it finds nothing.
struct Fault {
  std::string_view tool;
  void (*run)(float* values, int count);  // [count], an allocation of its own that nobody has written to
};

inline std::vector<Fault>& faults() {
  static std::vector<Fault> list;
  return list;
}

struct FaultEntry {
  FaultEntry(std::string_view tool, void (*run)(float* values, int count)) { faults().push_back({tool, run}); }
};

// The legacy default stream, which orders a test's launches and copies.
inline constexpr cudaStream_t kStream = nullptr;

// What memory holds before a kernel writes it; no test expects a run of this byte.
inline constexpr unsigned char kPoison = 0xa5;

// An array in device memory; new ones hold kPoison.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    check_cuda(cudaMalloc(&data_, size * sizeof(T)), "cudaMalloc");
    fill(kPoison);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    check_cuda(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy to the device");
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return static_cast<T*>(data_); }
  size_t bytes() const { return size_ * sizeof(T); }
  void fill(unsigned char byte) { check_cuda(cudaMemsetAsync(data_, byte, bytes(), kStream), "cudaMemset"); }

  // Waits for the kernels before it, so a kernel's failure surfaces here.
  std::vector<T> values() const {
    std::vector<T> host(size_);
    check_cuda(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
    return host;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

// To `digits` significant digits, as "%g" writes it.
inline std::string decimal(double value, int digits) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.*g", digits, value);
  return buffer;
}

inline std::string hex(uint32_t value) {
  char buffer[16];
  std::snprintf(buffer, sizeof(buffer), "0x%x", value);
  return buffer;
}

template <class Part>
std::string part_text(const Part& part) {
  if constexpr (std::is_same_v<Part, char>) {
    return std::string(1, part);
  } else if constexpr (std::is_convertible_v<Part, std::string_view>) {
    return std::string(std::string_view(part));
  } else if constexpr (std::is_floating_point_v<Part>) {
    return decimal(part, 6);
  } else if constexpr (std::is_arithmetic_v<Part>) {
    return std::to_string(part);
  } else {
    return part.text();
  }
}

template <class... Parts>
std::string text(const Parts&... parts) {
  return (std::string() + ... + part_text(parts));
}

// A value as a failure shows it; floats with their bits.
template <class T>
std::string show(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return text(decimal(value, 9), " (", hex(std::bit_cast<uint32_t>(value)), ")");
  } else if constexpr (std::is_same_v<T, double>) {
    return decimal(value, 17);
  } else if constexpr (sizeof(T) == 1) {
    return hex(static_cast<unsigned char>(value));
  } else {
    return text(value);
  }
}

// Bit for bit; any NaN equals any other.
template <class T>
bool same(T a, T b) {
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b);
  } else {
    return a == b;
  }
}

// Empty where all elements are the same; otherwise the first mismatch, and how many there are.
//   describe(i): the inputs of element i. equal(a, b): what counts as the same.
template <class T, class Describe, class Equal = bool (*)(T, T)>
std::string compare(std::string_view what, const std::vector<T>& expected, const std::vector<T>& got, Describe describe,
                    Equal equal = same<T>) {
  if (expected.size() != got.size()) return text(what, ": ", expected.size(), " results expected, got ", got.size());
  size_t first = 0, count = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (equal(expected[i], got[i])) continue;
    if (count++ == 0) first = i;
  }
  if (count == 0) return "";
  return text(what, ": ", describe(first), ": expected ", show(expected[first]), ", got ", show(got[first]), "; ",
              count, " of ", got.size(), " differ");
}

// Runs checks in turn; the first failure is the result.
template <class... Check>
std::string first_failure(const Check&... checks) {
  std::string failure;
  static_cast<void>(((failure = checks(), failure.empty()) && ...));
  return failure;
}

// Repeatable values; every call of a test sees the same.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  uint64_t bits() { return engine_(); }
  uint32_t word() { return static_cast<uint32_t>(engine_() >> 32); }
  int integer(int low, int high) { return low + static_cast<int>(word() % static_cast<uint32_t>(high - low + 1)); }
  float uniform(float low, float high) { return low + (high - low) * static_cast<float>(word() >> 8) * 0x1p-24f; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace warpsmith::selftest
