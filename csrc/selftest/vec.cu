// device/vec.h: every width and dtype, every way through the caches, every alignment that the width allows. Each vector
// is written back with its elements reversed, which also proves their order.
#include "device/vec.h"

#include "device/convert.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 64;
constexpr int kVectors = 96;       // a block and a half
constexpr int kAlignedBytes = 32;  // start addresses are tried modulo this, one memory sector

enum class Way { normal, streaming, kept_in_l2, streaming_with_normal_policy };

constexpr std::string_view name_of(Way way) {
  constexpr std::string_view names[] = {"", " streaming", " kept in L2", " streaming with the normal L2 policy"};
  return names[static_cast<int>(way)];
}

template <class T, int n, Way way>
__global__ void vec_reverse_kernel(T* to, const T* from, int vectors) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  Vec<T, n> in, out;
  constexpr Cache cache = way == Way::normal ? Cache::normal : Cache::streaming;
  if constexpr (way == Way::kept_in_l2) {
    load_with_policy(in, from + i * n, ptx::policy_evict_last());
  } else if constexpr (way == Way::streaming_with_normal_policy) {
    load_with_policy(in, from + i * n, ptx::policy_evict_normal());
  } else {
    load<cache>(in, from + i * n);
  }
#pragma unroll
  for (int k = 0; k < n; ++k) out[k] = in[n - 1 - k];
  store<cache>(to + i * n, out);
}

__global__ void policies_kernel(uint64_t* to) {
  to[0] = ptx::policy_evict_last();
  to[1] = ptx::policy_evict_normal();
}

// What the host hands to kernels in place of policies made on the device.
std::string check_policies() {
  if (device_info(current_device()).sm != 90) return "";
  DeviceArray<uint64_t> made(2);
  warpsmith::launch<&policies_kernel>({1, 1}, kStream, made.data());
  return compare("L2 policies of sm_90", {ptx::kEvictLastOnSm90, ptx::kEvictNormalOnSm90}, made.values(),
                 [](size_t i) { return i == 0 ? "evict last" : "evict normal"; });
}

struct Buffers {
  std::vector<unsigned char> source;
  DeviceArray<unsigned char> from, to;
};

template <class T, int n, Way way>
std::string check(Buffers& buffers, std::string_view dtype) {
  constexpr int kBytes = n * sizeof(T), kStarts = kAlignedBytes / kBytes;
  constexpr dim3 block(kThreads), grid((kVectors + kThreads - 1) / kThreads);
  const std::string what = text("Vec<", dtype, ", ", n, ">", name_of(way));
  for (int start = 0; start < kStarts; ++start) {
    // read and write at different alignments
    const int read = start * kBytes, write = kAlignedBytes + (kStarts - 1 - start) * kBytes;
    std::vector<unsigned char> expected(buffers.source.size(), kPoison);
    for (int i = 0; i < kVectors * n; ++i) {
      const int vector = i / n, mirrored = vector * n + (n - 1 - i % n);
      for (size_t byte = 0; byte < sizeof(T); ++byte) {
        expected[write + i * sizeof(T) + byte] = buffers.source[read + mirrored * sizeof(T) + byte];
      }
    }
    buffers.to.fill(kPoison);
    warpsmith::launch<&vec_reverse_kernel<T, n, way>>({grid, block}, kStream,
                                                      reinterpret_cast<T*>(buffers.to.data() + write),
                                                      reinterpret_cast<const T*>(buffers.from.data() + read), kVectors);
    const std::string failure = compare(what, expected, buffers.to.values(), [&](size_t i) {
      return text("read at byte ", read, ", written at byte ", write, ", byte ", i);
    });
    if (!failure.empty()) return failure;
  }
  return "";
}

template <class T, int n = 1>
std::string check_widths(Buffers& buffers, std::string_view dtype) {
  if constexpr (n * sizeof(T) <= 16) {
    return first_failure([&] { return check<T, n, Way::normal>(buffers, dtype); },
                         [&] { return check<T, n, Way::streaming>(buffers, dtype); },
                         [&] { return check_widths<T, 2 * n>(buffers, dtype); });
  } else {
    return first_failure([&] { return check<T, kPack<T>, Way::kept_in_l2>(buffers, dtype); },
                         [&] { return check<T, kPack<T>, Way::streaming_with_normal_policy>(buffers, dtype); });
  }
}

std::string run() {
  Random random(1);
  std::vector<unsigned char> source(kVectors * 16 + 3 * kAlignedBytes);
  for (unsigned char& byte : source) byte = static_cast<unsigned char>(random.word());
  Buffers buffers{source, DeviceArray<unsigned char>(source), DeviceArray<unsigned char>(source.size())};
  return first_failure(
      [&] { return check_widths<float>(buffers, "f32"); }, [&] { return check_widths<f16>(buffers, "f16"); },
      [&] { return check_widths<bf16>(buffers, "bf16"); }, [&] { return check_widths<e4m3>(buffers, "e4m3"); },
      [&] { return check_widths<e5m2>(buffers, "e5m2"); }, [&] { return check_widths<int8_t>(buffers, "i8"); },
      [&] { return check_widths<int32_t>(buffers, "i32"); }, check_policies);
}

const SelfTestEntry entered{"vec", run};

}  // namespace
}  // namespace warpsmith::selftest
