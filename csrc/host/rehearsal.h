// Whether a rung could run on the current device: its launch, gone through without starting anything. Only the launch knows
// which kernel serves a call and in clusters of how many blocks.
#pragma once

namespace warpsmith {

// While one lives, launch() on its thread starts nothing, and notes clusters of which the device does not hold any.
class Rehearsal {
 public:
  Rehearsal();
  ~Rehearsal();
  Rehearsal(const Rehearsal&) = delete;
  Rehearsal& operator=(const Rehearsal&) = delete;

  static Rehearsal* current();
  void note_unheld(int cluster) { unheld_ = cluster; }
  int unheld() const { return unheld_; }  // blocks of such a cluster, 0 for none

 private:
  int unheld_ = 0;
};

}  // namespace warpsmith
