#include "state.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

#include "card.h"

namespace openspyre {
namespace {

constexpr char kMagic[8] = {'S', 'P', 'Y', 'R', 'E', 'S', 'T', '1'};

struct Page {
  char magic[8] = {};
  uint64_t process = 0;
  uint64_t devices = 0;
  uint64_t spare[5] = {};
  std::array<CardState, kMaxDevices> cards;
};

Page& unpublished() {
  static auto* const instance = new Page();
  return *instance;
}
std::atomic<Page*> published{nullptr};
std::string& path() {
  static auto* const text = new std::string();
  return *text;
}

Page& page() noexcept {
  Page* const found = published.load(std::memory_order_acquire);
  return found ? *found : unpublished();
}

void remove_file() {
  if (page().process == static_cast<uint64_t>(getpid())) unlink(path().c_str());
}

// The parents of a folder exist or are made too.
void make_folder(const std::string& folder) {
  for (size_t at = folder.find('/', 1); at != std::string::npos; at = folder.find('/', at + 1))
    mkdir(folder.substr(0, at).c_str(), 0700);
  mkdir(folder.c_str(), 0700);
}

}  // namespace

CardState& card_state(int device) noexcept { return page().cards[static_cast<size_t>(device)]; }

void publish_state(const std::string& folder) noexcept {
  if (folder.empty() || published.load()) return;
  make_folder(folder);
  path() = folder + "/" + std::to_string(getpid()) + ".state";
  unlink(path().c_str());  // of a dead process with our number
  const int file = open(path().c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return;
  // Room on the disk, not only a length: writing to a mapped page without any kills the process.
  void* const at = posix_fallocate(file, 0, sizeof(Page)) == 0
                       ? mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                       : MAP_FAILED;
  close(file);
  if (at == MAP_FAILED) {
    unlink(path().c_str());
    return;
  }
  Page* const made = new (at) Page();
  made->process = static_cast<uint64_t>(getpid());
  made->devices = static_cast<uint64_t>(device_count());
  std::memcpy(made->magic, kMagic, sizeof kMagic);
  published.store(made, std::memory_order_release);
  std::atexit(remove_file);
}

}  // namespace openspyre
