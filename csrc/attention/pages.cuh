// Finds the page in which a token of a sequence lies.
#pragma once

#include "attention/pages.h"
#include "device/ptx/trap.h"

namespace warpsmith {

struct InPage {
  int page, token;  // of the page
};

// Where token `position` of a sequence lies, as the table has it: check_page() before an address is made of it. Apart from
// that, as it would wait for the table.
__device__ __forceinline__ InPage look_up_token(const Pages& pages, int sequence, int position) {
  const int at = static_cast<int>(pages.by_tokens.small_quotient(static_cast<uint32_t>(position)));
  const int token = position - at * pages.tokens;
  if (pages.table == nullptr) return {sequence, token};
  return {__ldg(pages.table + sequence * pages.table_stride + at), token};
}

// A page outside the cache ends the kernel.
__device__ __forceinline__ void check_page(const Pages& pages, int page) {
  if (static_cast<unsigned>(page) >= static_cast<unsigned>(pages.count)) {
    ptx::trap_with("block_table names a page that the cache does not have");
  }
}

__device__ __forceinline__ InPage find_token(const Pages& pages, int sequence, int position) {
  const InPage at = look_up_token(pages, sequence, position);
  check_page(pages, at.page);
  return at;
}

}  // namespace warpsmith
