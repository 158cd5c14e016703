// Device memory: what PyTorch and the other parts of the extension allocate.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>

namespace openspyre {

// Memory on a given device for the current stream, freed with the result.
c10::DataPtr allocate_on(int device, size_t bytes);
// The same for what is no tensor: space for a program's own use.
c10::DataPtr allocate_for_programs(int device, size_t bytes);
// The same for what the host writes and no stream orders: programs, symbol blocks. It was never in
// use by work that is still queued; whoever frees it must know that no work needs it.
c10::DataPtr allocate_apart(int device, size_t bytes);

c10::DeviceAllocator* allocator();

// Grows or shrinks a storage of the device, keeping the bytes that fit; ordered on the current
// stream.
void resize_storage(c10::StorageImpl* storage, size_t bytes);

}  // namespace openspyre
