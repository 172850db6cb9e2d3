// device/ptx/remote.h without PTX.
#pragma once

#include "ptx.h"

namespace warpsmith::ptx {

template <class Word>
Word load_remote(const Word* local, int rank) {
  emu::check_aligned(local, sizeof(Word), "a load from another block");
  return *static_cast<const Word*>(emu::in_block(const_cast<Word*>(local), rank));
}

}  // namespace warpsmith::ptx
