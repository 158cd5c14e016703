#include "frame.h"

#include <algorithm>

namespace spyre {

void share_scratch(std::vector<Worker>* workers) {
  for (Scratch Worker::* const scratch :
       {&Worker::rows, &Worker::panels, &Worker::registers, &Worker::tiles}) {
    int64_t most = 0;
    for (const Worker& worker : *workers) most = std::max(most, (worker.*scratch).capacity());
    for (Worker& worker : *workers) (worker.*scratch).bytes(most);
  }
  size_t axes = 0;
  for (const Worker& worker : *workers) axes = std::max(axes, worker.axes.capacity());
  for (Worker& worker : *workers) worker.axes.reserve(axes);
}

void Walk::add(const std::vector<int>& axes, const std::vector<AxisRange>& ranges) {
  for (int a : axes) {
    axis[size] = a;
    count[size++] = ranges[a].empty() ? 0 : ranges[a].count();
  }
}

void Walk::add(const Trips* together) {
  if (!together || together->count == 1) return;
  trips = size;
  axis[size] = together->batch.axis;
  count[size++] = together->count;
}

bool Walk::empty() const {
  for (int i = 0; i < size; ++i) {
    if (count[i] == 0) return true;
  }
  return false;
}

namespace {

Wide start_of(const Place& place, const int64_t* slots, const std::vector<AxisRange>& axes) {
  Wide at = place.base.of(slots);
  for (const Term& term : place.terms) {
    const AxisRange& range = axes[term.axis];
    at += static_cast<Wide>(term.coefficient.of(slots)) * (range.start - range.origin(term.origin));
  }
  return at;
}

void fill_strides(const Place& place, const Walk& walk, const int64_t* slots, Operand* operand) {
  for (int i = 0; i < walk.size; ++i) operand->stride[i] = 0;
  for (const Term& term : place.terms) {
    for (int i = 0; i < walk.size; ++i) {
      if (walk.axis[i] == term.axis && i != walk.trips)
        operand->stride[i] = term.coefficient.of(slots);
    }
  }
}

}  // namespace

char* Frame::data_of(const Place& place, Mode mode) const {
  if (place.space == Space::Device) return nullptr;
  if (is_held(place)) return trips->data(place);
  const Buffer& buffer = program.buffers[place.buffer];
  const uint8_t* const slot = mode == Mode::Read ? buffer_slots.read : buffer_slots.write;
  return lx + buffer.offset + (slot ? slot[place.buffer] * buffer.bytes : 0);
}

Operand Frame::unchecked(const Place& place, const Walk& walk, Mode mode) const {
  Operand operand;
  fill_strides(place, walk, slots, &operand);
  if (walk.trips >= 0) operand.stride[walk.trips] = trips->stride(place, slots);
  const auto at = static_cast<uintptr_t>(start_of(place, slots, axes));
  operand.at = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(data_of(place, mode)) + at);
  return operand;
}

Operand Frame::operand(const Place& place, const Walk& walk, int origin, Mode mode) const {
  const Operand operand = unchecked(place, walk, mode);
  Wide low = start_of(place, slots, axes), high = low + bytes_of(place.dtype);
  for (int i = 0; i < walk.size; ++i) {
    if (walk.count[i] == 0) return operand;           // touches nothing
    if (i == walk.trips && is_held(place)) continue;  // every trip has its own copy
    const Wide reach = static_cast<Wide>(operand.stride[i]) * (walk.count[i] - 1);
    (reach < 0 ? low : high) += reach;
  }
  check(place, low, high, origin);
  return operand;
}

void Frame::check(const Place& place, Wide low, Wide high, int origin) const {
  const bool lx_place = place.space == Space::Lx;
  const Wide first = lx_place ? 0 : reinterpret_cast<uintptr_t>(machine.memory->data());
  const Wide last = first + (lx_place ? static_cast<Wide>(program.buffers[place.buffer].bytes)
                                      : static_cast<Wide>(machine.memory->bytes()));
  if (low >= first && high <= last) return;
  const std::string where =
      lx_place ? "LX buffer " + program.buffers[place.buffer].name : "the card's memory";
  stop(origin, "an access to bytes " + std::to_string(static_cast<int64_t>(low - first)) + " to " +
                   std::to_string(static_cast<int64_t>(high - first)) + " of " + where +
                   ", which has " + std::to_string(static_cast<int64_t>(last - first)));
}

const std::string& Frame::source(int origin) const {
  return origin < 0 ? program.name : program.sources[origin];
}

void Frame::stop(int origin, const std::string& why) const {
  throw Failure(SPYRE_STOPPED, source(origin) + ": " + why);
}

}  // namespace spyre
