// Device memory as the time engine sees it: one server that all requests in flight share.
//
// Every request has an amount of work (cycles of the whole memory) and a shortest duration (what
// its cores can take in). Rates are max-min fair by number of cores: nobody runs above its own
// limit, what it leaves is shared by the others. Work divided over few cores draws a part of the
// rate: 32 cores that stream together get the whole bandwidth, one core alone gets its own port's.
#pragma once

#include <cstddef>
#include <vector>

#include "spec.h"

namespace spyre {

class DeviceMemory {
 public:
  // Time of the last event.
  double now() const { return now_; }
  bool idle() const { return active_.empty(); }

  // For a section whose work is divided over so many cores.
  DeviceMemory(const Spec& spec, double cores);

  // Starts a request of `cores` cores at `time` >= now().
  void start(int request, double time, double work, double shortest, double cores);
  // When the next request finishes, if no other starts before. Not for an idle server.
  double next_finish();
  // Moves to next_finish() and returns the requests that finish there, in starting order.
  std::vector<int> finish();

 private:
  struct Active {
    int request;
    double left;   // work
    double limit;  // highest rate: work per cycle, at most 1
    double weight;
    double rate;
  };

  void advance(double time);
  void share();

  double rate_;  // part of the whole memory's rate that the section's cores can draw
  std::vector<Active> active_;
  double now_ = 0;
  bool stale_ = false;  // rates must be shared out again
};

}  // namespace spyre
