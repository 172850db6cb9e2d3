// Finds the page in which a token of a sequence lies.
#pragma once

#include "attention/pages.h"
#include "device/ptx/trap.h"

namespace warpsmith {

struct InPage {
  int64_t page;
  int token;  // of the page
};

// Where token `position` of a sequence lies. Whatever the table says, no address outside the cache is made: such a page
// ends the kernel.
__device__ __forceinline__ InPage find_token(const Pages& pages, int sequence, int position) {
  const int at = static_cast<int>(pages.by_tokens.small_quotient(static_cast<uint32_t>(position)));
  const int token = position - at * pages.tokens;
  if (pages.table == nullptr) return {sequence, token};
  const int page = __ldg(pages.table + sequence * pages.table_stride + at);
  if (static_cast<unsigned>(page) >= static_cast<unsigned>(pages.count)) {
    ptx::trap_with("block_table names a page that the cache does not have", __FILE__, __LINE__);
  }
  return {page, token};
}

}  // namespace warpsmith
