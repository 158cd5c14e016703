// The C API: arguments checked, exceptions turned into codes.
#include "card.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "check.h"
#include "event_log.h"
#include "execute.h"
#include "kept.h"

using namespace spyre;  // NOLINT: the API's types live outside the namespace

namespace {

constexpr unsigned char kPoison = 0xCB;
constexpr int64_t kPanelBudget = int64_t{256} << 20;

int reported(int code, const char* text, spyre_error* error) {
  if (error) {
    std::strncpy(error->text, text, sizeof error->text - 1);
    error->text[sizeof error->text - 1] = 0;
  }
  return code;
}

// Runs the body of a call: 0, or the code of what it threw.
template <class Body>
int guarded(spyre_error* error, const Body& body) {
  try {
    body();
    return SPYRE_OK;
  } catch (const Failure& failure) {
    return reported(failure.code(), failure.what(), error);
  } catch (const std::bad_alloc&) {
    return reported(SPYRE_OUT_OF_MEMORY, "the host has no memory left", error);
  } catch (const std::exception& unexpected) {
    return reported(SPYRE_STOPPED, unexpected.what(), error);
  }
}

void require(bool holds, const char* what) {
  if (!holds) throw Failure(SPYRE_BAD_ARGUMENT, what);
}

Numerics numerics_of(const spyre_numerics* given) {
  if (!given || !given->card) return {};
  const int chunk = given->acc_chunk;
  require(given->dl16_round >= 0 && given->dl16_round < kDl16Rounds, "an unknown DL16 rounding");
  require(given->acc_format >= 0 && given->acc_format <= 2, "an unknown format of sums");
  require(chunk >= 0 && chunk <= kLanes && (chunk & (chunk - 1)) == 0,
          "a chunk that is no power of two up to 64");
  require(given->fp8_bias >= 1 && given->fp8_bias <= kFp8Biases, "a bias of fp8 outside 1 to 15");
  return {true,
          static_cast<Dl16Round>(given->dl16_round),
          given->bf16_out_truncate != 0,
          static_cast<SumFormat>(given->acc_format),
          chunk,
          given->fp8_bias};
}

}  // namespace

struct spyre_card {
  spyre_card(const Spec& numbers, uint64_t bytes, int threads)
      : spec(numbers),
        memory(bytes),
        lx(spec.core_count(), static_cast<int64_t>(spec.lx_bytes)),
        pool(threads),
        panels(kPanelBudget),
        workers(pool.threads()),
        kernels(&spyre::kernels()) {}

  bool holds(uint64_t address, uint64_t bytes) const {
    const auto base = reinterpret_cast<uint64_t>(memory.data());
    return address >= base && bytes <= memory.bytes() && address - base <= memory.bytes() - bytes;
  }

  Spec spec;
  Mapping memory;
  Scratchpads lx;
  Pool pool;
  PanelCache panels;
  std::vector<Worker> workers;
  const Kernels* kernels;
  std::atomic<unsigned> debug{0};  // SPYRE_DEBUG_* flags
  std::mutex running;              // one program at a time
  Interrupt interrupt;             // of the one that runs
  std::atomic<uint64_t> launches{0};
  std::atomic<int64_t> programs{0};
  KeptTable kept{KeptTable::Actual}, expected{KeptTable::Expected};
};

struct spyre_program {
  spyre_program(spyre_card* owner, const uint8_t* bytes, size_t count)
      : card(owner),
        program(decode(bytes, count, owner->spec)),
        code(program, *owner->kernels),
        prologue(program) {
    card->kept.add(prologue);
    card->expected.add(prologue);
  }
  ~spyre_program() {
    card->kept.remove(prologue);
    card->expected.remove(prologue);
  }

  spyre_card* card;
  const Program program;
  Executable code;
  Prologue prologue;
};

// --- the card ------------------------------------------------------------------------------

int spyre_card_open(const char* const* names, const double* values, size_t count, uint64_t memory,
                    int threads, spyre_card** card, spyre_error* error) {
  return guarded(error, [&] {
    require(names && values && card, "a null pointer");
    require(threads <= 1024, "more than 1024 threads");
    *card = nullptr;
    const Spec spec = spec_of(names, values, count);
    require(spec.lx_usable <= spec.lx_bytes, "lx_usable exceeds lx_bytes");
    *card = new spyre_card(spec, memory, threads);
  });
}

void spyre_card_close(spyre_card* card) { delete card; }

int spyre_card_use_isa(spyre_card* card, const char* isa, spyre_error* error) {
  return guarded(error, [&] {
    require(card && isa, "a null pointer");
    require(card->programs == 0, "the card has programs, which are bound to another ISA");
    const Kernels* kernels = kernels_named(isa);
    if (!kernels) {
      throw Failure(SPYRE_BAD_ARGUMENT, std::string("no kernels for ISA ") + isa + " on this CPU");
    }
    card->kernels = kernels;
  });
}

int spyre_card_debug(spyre_card* card, unsigned flags, spyre_error* error) {
  return guarded(error, [&] {
    require(card, "a null pointer");
    require(!(flags & ~unsigned{SPYRE_DEBUG_POISON | SPYRE_DEBUG_LATE}), "an unknown debug flag");
    card->debug = flags;
  });
}

uint64_t spyre_card_memory_base(const spyre_card* card) {
  return reinterpret_cast<uint64_t>(card->memory.data());
}

uint64_t spyre_card_memory_size(const spyre_card* card) { return card->memory.bytes(); }

int spyre_card_memory_release(spyre_card* card, uint64_t address, uint64_t bytes) {
  if (!card->holds(address, bytes)) return SPYRE_BAD_ARGUMENT;
  if (card->debug & SPYRE_DEBUG_POISON) return spyre_card_memory_fresh(card, address, bytes);
  card->memory.release(address - spyre_card_memory_base(card), bytes);
  spyre_card_touch(card, address, bytes);
  return SPYRE_OK;
}

int spyre_card_memory_fresh(spyre_card* card, uint64_t address, uint64_t bytes) {
  if (!card->holds(address, bytes)) return SPYRE_BAD_ARGUMENT;
  if (!(card->debug & SPYRE_DEBUG_POISON)) return SPYRE_OK;
  card->memory.fill(address - spyre_card_memory_base(card), bytes, kPoison);
  spyre_card_touch(card, address, bytes);
  return SPYRE_OK;
}

void spyre_card_touch(spyre_card* card, uint64_t address, uint64_t bytes) {
  card->panels.touch(address, address + bytes);
  card->kept.touch(address, address + bytes);
}

void spyre_card_will_touch(spyre_card* card, uint64_t address, uint64_t bytes) {
  card->expected.touch(address, address + bytes);
}

void spyre_card_evict(spyre_card* card) {
  card->kept.forget_all();
  card->expected.forget_all();
}

size_t spyre_card_kept(const spyre_card* card, spyre_kept* kept, size_t capacity) {
  const auto shown = card->kept.shown();
  for (size_t i = 0; i < shown.size() && i < capacity; ++i) {
    spyre_kept& into = kept[i];
    std::strncpy(into.name, shown[i].name.c_str(), sizeof into.name - 1);
    into.name[sizeof into.name - 1] = 0;
    into.bytes = shown[i].bytes;
    into.loads = shown[i].loads;
    into.hits = shown[i].hits;
  }
  return shown.size();
}

// --- programs ------------------------------------------------------------------------------

int spyre_program_create(spyre_card* card, uint64_t address, uint64_t bytes,
                         spyre_program** program, spyre_error* error) {
  return guarded(error, [&] {
    require(card && program, "a null pointer");
    *program = nullptr;
    require(card->holds(address, bytes), "the program does not lie in the card's memory");
    *program = new spyre_program(card, reinterpret_cast<const uint8_t*>(address), bytes);
    ++card->programs;
  });
}

void spyre_program_destroy(spyre_program* program) {
  if (!program) return;
  --program->card->programs;
  delete program;
}

uint64_t spyre_program_slot_count(const spyre_program* program) {
  return program->program.slots.size();
}

uint64_t spyre_program_pool_bytes(const spyre_program* program) {
  return static_cast<uint64_t>(program->program.pool_bytes);
}

int spyre_program_fill(const spyre_program* program, const uint64_t* addresses,
                       size_t address_count, const int64_t* sizes, size_t size_count,
                       const double* scalars, size_t scalar_count, uint64_t pool, int64_t* slots,
                       spyre_error* error) {
  return guarded(error, [&] {
    require(program && (slots || program->program.slots.empty()), "a null pointer");
    fill_slots(program->program, addresses, address_count, sizes, size_count, scalars, scalar_count,
               pool, slots);
  });
}

int spyre_program_run(spyre_program* program, uint64_t slot_address, const spyre_numerics* numerics,
                      spyre_error* error) {
  return guarded(error, [&] {
    require(program, "a null pointer");
    const Numerics chosen = numerics_of(numerics);
    spyre_card* card = program->card;
    const uint64_t bytes = program->program.slots.size() * sizeof(int64_t);
    require(bytes == 0 || (card->holds(slot_address, bytes) && slot_address % 8 == 0),
            "the symbol block does not lie in the card's memory");
    const std::lock_guard<std::mutex> turn(card->running);
    const Kernels* kernels =
        chosen.card ? card->kernels->dl16(chosen.round, chosen.fp8_bias) : card->kernels;
    card->interrupt.wanted = false;
    const Machine machine{kernels,          card->kernels, chosen,           &card->memory,
                          &card->lx,        &card->pool,   &card->panels,    &card->workers,
                          ++card->launches, card->debug,   &card->interrupt, &card->kept};
    const auto* slots = reinterpret_cast<const int64_t*>(slot_address);
    const bool kept = card->kept.begin(program->prologue, slots, chosen);
    try {
      program->code.run(machine, slots, kept ? program->program.prologue : 0);
    } catch (...) {
      card->kept.forget(program->prologue);
      throw;
    }
  });
}

int spyre_program_expect(spyre_program* program, const int64_t* slots,
                         const spyre_numerics* numerics) {
  spyre_card* card = program->card;
  if (program->program.prologue == 0 && card->expected.empty()) return 0;
  spyre_error unused;
  bool kept = false;
  (void)guarded(&unused, [&] {
    kept = card->expected.begin(program->prologue, slots, numerics_of(numerics));
    program->code.stores(slots,
                         [&](uintptr_t low, uintptr_t high) { card->expected.touch(low, high); });
  });
  return kept;
}

int spyre_program_has_prologue(const spyre_program* program) {
  return program->program.prologue > 0;
}

void spyre_card_interrupt(spyre_card* card) { card->interrupt.wanted = true; }

int spyre_program_time(spyre_program* program, const int64_t* slots, spyre_report* report,
                       spyre_error* error) {
  return guarded(error, [&] {
    require(program && report && (slots || program->program.slots.empty()), "a null pointer");
    *report = time_program(program->program, program->card->spec, slots);
  });
}

int spyre_program_time_kept(spyre_program* program, const int64_t* slots, spyre_report* report,
                            spyre_error* error) {
  return guarded(error, [&] {
    require(program && report && (slots || program->program.slots.empty()), "a null pointer");
    *report = time_program(program->program, program->card->spec, slots, nullptr,
                           program->program.prologue);
  });
}

int spyre_program_trace(spyre_program* program, const int64_t* slots, spyre_event* events,
                        size_t capacity, spyre_report* report, spyre_error* error) {
  return guarded(error, [&] {
    require(program && report && (slots || program->program.slots.empty()), "a null pointer");
    require(events || capacity == 0, "no place for events");
    EventLog log(events, capacity);
    *report = time_program(program->program, program->card->spec, slots, &log);
  });
}

int spyre_program_check(const spyre_program* program, const int64_t* slots,
                        const spyre_span* arguments, size_t count, spyre_error* error) {
  return guarded(error, [&] {
    require(program && (slots || program->program.slots.empty()), "a null pointer");
    require(count == static_cast<uint64_t>(program->program.addresses) && (arguments || !count),
            "a check takes a span for every address");
    std::vector<Span> spans;
    for (size_t i = 0; i < count; ++i) {
      const spyre_span& span = arguments[i];
      require(span.low <= span.high && span.stored >= -1, "a span is none");
      spans.push_back({span.low, span.high, span.stored, span.fresh != 0});
    }
    check_program(program->program, slots, spans);
  });
}

// --- facts ---------------------------------------------------------------------------------

int spyre_format_version(void) { return 5; }
