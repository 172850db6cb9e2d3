// device/philox.h: the generator against known answers, and dropout one element at a time against four.
#include "device/philox.h"

#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

// The generator as its authors have it, round after round.
__host__ __device__ __forceinline__ uint4 philox4x32(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < kPhiloxRounds; ++round) {
    counter = philox_round(counter, key);
    key.x += kPhiloxWeylX;
    key.y += kPhiloxWeylY;
  }
  return counter;
}

constexpr int kThreads = 128;

struct KnownAnswer {
  uint4 counter;
  uint2 key;
  uint4 words;
};

// philox4x32 10 in Random123's tests/kat_vectors: zeros, ones, digits of pi.
// https://github.com/DEShawResearch/random123/blob/main/tests/kat_vectors
constexpr KnownAnswer kKnownAnswers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};
constexpr int kKnown = static_cast<int>(std::size(kKnownAnswers));

__global__ void philox_kernel(uint32_t* to, const KnownAnswer* from) {
  const int i = threadIdx.x;
  if (i >= kKnown) return;
  const uint4 words = philox4x32(from[i].counter, from[i].key);
  to[4 * i] = words.x;
  to[4 * i + 1] = words.y;
  to[4 * i + 2] = words.z;
  to[4 * i + 3] = words.w;
}

std::string check_known_answers() {
  std::vector<uint32_t> expected;
  for (const KnownAnswer& answer : kKnownAnswers) {
    expected.insert(expected.end(), {answer.words.x, answer.words.y, answer.words.z, answer.words.w});
  }
  DeviceArray<KnownAnswer> from(std::vector<KnownAnswer>(std::begin(kKnownAnswers), std::end(kKnownAnswers)));
  DeviceArray<uint32_t> to(expected.size());
  warpsmith::launch<&philox_kernel>({1, kThreads}, kStream, to.data(), static_cast<const KnownAnswer*>(from.data()));
  return compare("philox4x32", expected, to.values(),
                 [](size_t i) { return text("word ", i % 4, " of answer ", i / 4); });
}

// to[0]: eight at a time. to[1]: one at a time.
__global__ void dropout_kernel(int* to, Dropout dropout, uint64_t first, int elements) {
  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (i >= elements) return;
  bool kept[8];
  dropout.keeps(kept, first + i);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    to[i + j] = kept[j];
    to[elements + i + j] = dropout.keeps(first + i + j);
  }
}

// Held against the generator itself, one element at a time.
std::string check_dropout(double p, int64_t seed, int64_t offset, uint64_t first) {
  constexpr int kElements = 1 << 14;
  const Dropout dropout(p, seed, offset);
  std::vector<int> expected(2 * kElements);
  int64_t kept = 0;
  for (int i = 0; i < kElements; ++i) {
    const uint64_t group = (first + i) / 4, key = static_cast<uint64_t>(seed), run = static_cast<uint64_t>(offset);
    const uint4 four =
        philox4x32({low_word(group), high_word(group), low_word(run), high_word(run)}, {low_word(key), high_word(key)});
    const uint32_t words[] = {four.x, four.y, four.z, four.w};
    const bool keeps = !dropout.active || words[(first + i) % 4] > dropout.last_dropped;
    expected[i] = expected[kElements + i] = keeps;
    kept += keeps;
  }
  const double wanted = (1.0 - p) * kElements, deviation = std::sqrt(p * (1.0 - p) * kElements);
  if (std::fabs(static_cast<double>(kept) - wanted) > 5.0 * deviation) {
    return text("dropout with p = ", p, " keeps ", kept, " of ", kElements, " elements");
  }
  if (!dropout.active) return "";
  DeviceArray<int> to(expected.size());
  const dim3 grid(kElements / 8 / kThreads);
  warpsmith::launch<&dropout_kernel>({grid, kThreads}, kStream, to.data(), dropout, first, kElements);
  return compare("dropout", expected, to.values(), [&](size_t i) {
    return text("element ", first + i % kElements, i < kElements ? ", eight at a time" : ", alone", ", p = ", p);
  });
}

std::string run() {
  return first_failure([] { return check_known_answers(); }, [] { return check_dropout(0.0, 1, 2, 0); },
                       [] { return check_dropout(0.1, 1, 2, 0); }, [] { return check_dropout(0.5, -1, -2, 1 << 20); },
                       [] { return check_dropout(0.9, 0x123456789abcdef, 1, (uint64_t{1} << 34) - 4096); },
                       [] { return check_dropout(1.0, 7, 0, 0); });
}

const SelfTestEntry entered{"philox", run};

}  // namespace
}  // namespace warpsmith::selftest
