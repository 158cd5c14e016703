#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "arena.h"
#include "copy.h"
#include "memory.h"

namespace openspyre {

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  const int device = storage->device().index();
  auto fresh = allocate_on(device, bytes);
  const size_t kept = std::min(bytes, storage->nbytes());
  if (kept) copy_within(current_stream(device), fresh.get(), storage->data(), kept);
  if (storage->nbytes())
    arena(device).record_stream(reinterpret_cast<uint64_t>(storage->data()),
                                current_stream_id(device));
  storage->set_data_ptr_noswap(std::move(fresh));
  storage->set_nbytes(bytes);
}

}  // namespace openspyre
