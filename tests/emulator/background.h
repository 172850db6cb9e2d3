// What runs while its threads go on: products of wgmma, copies from shared memory. It sees shared memory as the async proxy
// does (shadow.h), and is done as late as a wait allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace emu {

// What the async proxy sees at a 32-bit address of this block.
void read_async(uint32_t address, void* to, size_t bytes);

// Until the phase is complete, by threads that leave it to others to read what has landed.
void barrier_wait_unread(uint64_t* barrier, int parity);

// An arrival at a named barrier, without a wait.
void arrive_some(int barrier, int threads);

void fence_products();
void multiply_later(std::function<void()> product);
void commit_products();
void wait_products(int pending);

void run_store_later(std::function<void()> store);

}  // namespace emu
