// torch.profiler: what the cards did, as device activities of Kineto.
//
// An activity begins when the host's software card began with it and lasts as long as a card would
// take: so "Self SPYRE" is card time. Where that is longer than the host took, later ones move
// back.
#define FMT_HEADER_ONLY  // torch exports no fmt
#define USE_KINETO
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "card.h"
#include "queue.h"
#include "spans.h"

namespace openspyre {
namespace {

using libkineto::ActivityType;

constexpr const char* kEngineNames[kEngines] = {"compute", "to card", "to host"};

class Session final : public libkineto::IActivityProfilerSession {
 public:
  ~Session() override { stop(); }
  void start() override {
    position_ = start_recording();
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    if (status_ != libkineto::TraceStatus::RECORDING) return;
    finish_everything();
    spans_ = stop_recording(position_);
    status_ = libkineto::TraceStatus::READY;
  }
  std::vector<std::string> errors() override { return {}; }
  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                    int64_t, int64_t) override {
    std::sort(spans_.begin(), spans_.end(),
              [](const Span& a, const Span& b) { return a.host_start < b.host_start; });
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    std::map<std::pair<int, int>, int64_t> free;
    for (const Span& span : spans_) {
      const auto type = span.subject ? ActivityType::CONCURRENT_KERNEL : ActivityType::GPU_MEMCPY;
      buffer_->emplace_activity(buffer_->span, type, span.name);
      auto& activity = *buffer_->activities.back();
      int64_t& end = free[{span.device, span.engine}];
      activity.startTime = std::max(span.host_start, end);
      activity.endTime = end = activity.startTime + (span.card_end - span.card_start + 999) / 1000;
      activity.device = span.device;
      activity.resource = span.engine;
      activity.id = static_cast<int32_t>(span.correlation);
      activity.linked = linked(activity.id);
      activity.addMetadata("stream", span.stream);
      activity.addMetadata("host ns", span.host_end - span.host_start);
      activity.log(logger);
    }
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(
        libkineto::DeviceInfo{0, libkineto::kExceedMaxPid, "spyre", "spyre (card time)"});
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> found;
    for (int device = 0; device < device_count(); ++device)
      for (int engine = 0; engine < kEngines; ++engine)
        found.push_back({engine, engine, device, engine_name(device, engine)});
    return found;
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }
  void pushCorrelationId(uint64_t id) override { push_correlation(id); }
  void popCorrelationId() override { pop_correlation(); }

 private:
  // Kineto names one device of a session only: where there are several, every track says whose.
  static std::string engine_name(int device, int engine) {
    const std::string name = kEngineNames[engine];
    return device_count() > 1 ? "spyre:" + std::to_string(device) + " " + name : name;
  }

  size_t position_ = 0;
  std::vector<Span> spans_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& wanted, const libkineto::Config&) override {
    const bool any = std::any_of(types_.begin(), types_.end(),
                                 [&](ActivityType type) { return wanted.count(type) > 0; });
    return any ? std::make_unique<Session>() : nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& wanted,
      const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  std::string name_ = "spyre";
  std::set<ActivityType> types_{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY};
};

REGISTER_PRIVATEUSE1_PROFILER(Profiler);

}  // namespace
}  // namespace openspyre
