// The C API of the software card: plain data in and out, no torch, no exceptions across it.
//
// Calls that can fail return 0 on success and a SPYRE_* code otherwise, with a message in
// `error` (at most `capacity` bytes, zero-terminated). A program's bytes are the binary form of
// `openspyre.ir.program.Program` (see `src/openspyre/ir/binary.py` for the format).
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPYRE_API __attribute__((visibility("default")))

enum {
  SPYRE_OK = 0,
  SPYRE_INVALID_PROGRAM = 1,  // malformed, corrupted, another version
  SPYRE_OUT_OF_MEMORY = 2,    // of the card
  SPYRE_STOPPED = 3,          // the program did something the card does not allow
  SPYRE_INDEX = 4,            // an index of the user's is out of range
  SPYRE_BAD_ARGUMENT = 5,     // of this API
  SPYRE_BROKEN = 6,           // a rule that the card's own code must keep does not hold
  SPYRE_TOO_LARGE = 7,        // too much work to check, not wrong
  SPYRE_INTERRUPTED = 8,      // spyre_card_interrupt
};

// Modes that find programs which are right only by luck. Results of right programs are the same.
enum {
  // LX holds NaN when a launch begins, memory that is handed out or released holds 0xCB.
  SPYRE_DEBUG_POISON = 1,
  // Copies happen as late as the order between units allows: a load when an instruction needs its
  // bytes, a store when its source or its target is written or the section ends.
  SPYRE_DEBUG_LATE = 2,
};

typedef struct spyre_card spyre_card;
typedef struct spyre_program spyre_program;

typedef struct {
  char text[1024];
} spyre_error;

// What one launch did. Cycles are core clock cycles, busy cycles are summed over cores.
// Counts do not depend on the host's caches.
typedef struct {
  uint64_t cycles;
  uint64_t bound_p_cycles;  // max(flop / peak, bytes / peak), card.md 4
  uint64_t pt_busy, sfu_busy, load_busy, store_busy, ring_busy;
  uint64_t device_read_bytes, device_write_bytes;  // multicast data counts once
  uint64_t ring_bytes;
  uint64_t flop;          // of PT: 2 per multiply-add
  uint64_t sfu_ops;       // scalar ops of SFU
  uint64_t lx_peak;       // bytes of the fullest core
  uint64_t cores;         // that had work
  uint64_t instructions;  // dynamic, all cores
} spyre_report;

// --- the card ------------------------------------------------------------------------------
// `names`/`values`: the numbers of a CardSpec, by name (a missing or unknown name is an error).
// `memory`: bytes of device memory; the address range is reserved at once, pages when touched.
// `threads`: host threads that run cores, the calling one included; 0: as many as the process may
// use.
SPYRE_API int spyre_card_open(const char* const* names, const double* values, size_t count,
                              uint64_t memory, int threads, spyre_card** card, spyre_error* error);
SPYRE_API void spyre_card_close(spyre_card* card);
// Uses the kernels of an instruction set ("avx512", "avx2", "portable") instead of the best one.
// Results do not depend on it. Only before the first program.
SPYRE_API int spyre_card_use_isa(spyre_card* card, const char* isa, spyre_error* error);
// Sets SPYRE_DEBUG_* flags; 0, as a card begins, is none of them.
SPYRE_API int spyre_card_debug(spyre_card* card, unsigned flags, spyre_error* error);

// Device memory is one range [base, base + size); addresses are what tensors carry. On this card
// they are host addresses too, but only the copy engine (spyre_card_write/read) may rely on it.
SPYRE_API uint64_t spyre_card_memory_base(const spyre_card* card);
SPYRE_API uint64_t spyre_card_memory_size(const spyre_card* card);
// Gives the pages of a range back to the host; contents are lost (poisoned in debug mode).
SPYRE_API int spyre_card_memory_release(spyre_card* card, uint64_t address, uint64_t bytes);
// Says that a range was handed out and that its contents mean nothing: poisoned in debug mode.
SPYRE_API int spyre_card_memory_fresh(spyre_card* card, uint64_t address, uint64_t bytes);

// Bumps a counter that says "bytes of this range may have changed"; the panel cache of `execute`
// is valid while the counter of the range is. Whoever writes device memory other than by a launch
// (copies from the host or within the card) touches the bytes written. Launches touch what they
// store to by themselves.
SPYRE_API void spyre_card_touch(spyre_card* card, uint64_t address, uint64_t bytes);

// --- what LX keeps -------------------------------------------------------------------------
// A program may have a prologue that loads bytes of its arguments into LX, where they stay. A
// launch leaves it out if LX still holds them: the program's last launch read them from the same
// addresses, with the same numerics, and since then nothing has touched them in device memory, no
// launch of another program has used these bytes of LX, and no launch of it has failed.
typedef struct {
  char name[256];  // of the program
  uint64_t bytes;  // of LX, over all cores
  uint64_t loads;  // launches that ran the prologue
  uint64_t hits;   // launches that left it out
} spyre_kept;
// Writes the first `capacity` programs for which LX holds something; how many there are.
SPYRE_API size_t spyre_card_kept(const spyre_card* card, spyre_kept* kept, size_t capacity);
// Forgets what LX holds: every program's next launch runs its prologue.
SPYRE_API void spyre_card_evict(spyre_card* card);
// `spyre_card_touch` says what has been written, this what will have been by the launches that are
// submitted from now on (`spyre_program_expect`).
SPYRE_API void spyre_card_will_touch(spyre_card* card, uint64_t address, uint64_t bytes);

// --- programs ------------------------------------------------------------------------------
// Decodes and keeps a program; its bytes lie in card memory at `address` (the caller allocated
// and wrote them; the card copies nothing else). The program must be destroyed before the card.
SPYRE_API int spyre_program_create(spyre_card* card, uint64_t address, uint64_t bytes,
                                   spyre_program** program, spyre_error* error);
SPYRE_API void spyre_program_destroy(spyre_program* program);
SPYRE_API uint64_t spyre_program_slot_count(const spyre_program* program);
SPYRE_API uint64_t spyre_program_pool_bytes(const spyre_program* program);
SPYRE_API int spyre_program_has_prologue(const spyre_program* program);

// Step 1 of a launch, on the host: fills the symbol block.
SPYRE_API int spyre_program_fill(const spyre_program* program, const uint64_t* addresses,
                                 size_t address_count, const int64_t* sizes, size_t size_count,
                                 const double* scalars, size_t scalar_count, uint64_t pool,
                                 int64_t* slots, spyre_error* error);
// Step 2 is a copy of the block to card memory at `slot_address`.
// How a launch computes. `card` 0: dtypes as PyTorch has them, sums in f32. Otherwise f16 and bf16
// are DL16 inside the card, with the switches of card.md 2.3 (openspyre/numerics.py).
typedef struct {
  int card;
  int dl16_round;         // 0 nearest, ties up; 1 nearest, ties to even; 2 truncated
  int bf16_out_truncate;  // DL16 to bf16: 0 nearest even
  int acc_format;         // of sums inside a chunk: 0 products and sums DL16, 1 sums only, 2 f32
  int acc_chunk;          // terms of a chunk, a power of two up to 64; 0: the whole sum
  int fp8_bias;           // of 1-4-3, 1 to 15
} spyre_numerics;

// Step 3: runs the program against the block there. Returns when it has finished. No `numerics`:
// all zero. SPYRE_STOPPED at once for a block that asks for more than 2^50 scalar operations or
// 2^40 instructions (demand.h).
SPYRE_API int spyre_program_run(spyre_program* program, uint64_t slot_address,
                                const spyre_numerics* numerics, spyre_error* error);
// Called for every launch in the order in which they are submitted: whether this one will leave its
// prologue out, if what was submitted before it is done by then. Decides nothing but the time that
// a launch is said to take.
SPYRE_API int spyre_program_expect(spyre_program* program, const int64_t* slots,
                                   const spyre_numerics* numerics);
// Ends the program that runs now, from any thread: its `spyre_program_run` returns soon, with
// SPYRE_INTERRUPTED and memory half written. Nothing happens where none runs.
SPYRE_API void spyre_card_interrupt(spyre_card* card);
// Cycles of the program for the sizes in a block; values are not computed, addresses not used.
SPYRE_API int spyre_program_time(spyre_program* program, const int64_t* slots, spyre_report* report,
                                 spyre_error* error);
// The same for a launch that leaves the prologue out.
SPYRE_API int spyre_program_time_kept(spyre_program* program, const int64_t* slots,
                                      spyre_report* report, spyre_error* error);

// One executed instruction, as the time engine saw it.
typedef struct {
  double begin, end;  // its unit was busy with it: cycles from the launch's start
  // Of a request that several cores share, the first one's event has the device memory's bytes and
  // every other one's those that the ring handed on: sums over events are the report's.
  uint64_t read_bytes, write_bytes, ring_bytes;
  int32_t section, node;  // the instruction's number in its section, in body order, loops counted
  int32_t core;
  int32_t unit;  // 0 load, 1 store, 2 PT, 3 SFU, 4 ring
} spyre_event;
// Like `spyre_program_time`, and writes the first `capacity` events, by the end of their work
// within a section. A report says how many there are: `instructions`.
SPYRE_API int spyre_program_trace(spyre_program* program, const int64_t* slots, spyre_event* events,
                                  size_t capacity, spyre_report* report, spyre_error* error);

// What a launch may do with an argument.
typedef struct {
  int64_t low, high;  // the bytes it may access, relative to the address: [low, high)
  int64_t stored;     // how many of them it stores at least; -1: it must not store any
  int64_t fresh;      // whether they mean nothing before: no byte is read that it has not stored
} spyre_span;
// Proves, without values, that the program is right for the sizes in a block: accesses in bounds,
// nothing read that was not written, nothing left out, no race (see check.h). SPYRE_STOPPED: it is
// not, `error` names the instructions. `arguments` has one span for every address; no two arguments
// share bytes.
SPYRE_API int spyre_program_check(const spyre_program* program, const int64_t* slots,
                                  const spyre_span* arguments, size_t count, spyre_error* error);

// --- facts ---------------------------------------------------------------------------------
SPYRE_API const char* spyre_isa(void);          // "avx512", "avx2" or "portable"
SPYRE_API const char* spyre_op_name(int code);  // NULL if there is none
SPYRE_API int spyre_format_version(void);

#ifdef __cplusplus
}
#endif
