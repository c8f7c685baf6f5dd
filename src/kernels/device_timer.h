// Times of work that a device runs asynchronously.
#pragma once

#include <cstdint>
#include <span>

namespace switchyard::kernels {

// Marks positions in the stream of a device without waiting for it. Made by the device, which
// outlives it. Used by the rank's thread only, never while a pass is captured as a graph.
class DeviceTimer {
 public:
  virtual ~DeviceTimer() = default;
  // Marks the present end of the stream. Returns the mark's index since the last Resolve. Returns
  // -1 if too many marks are pending, or if the device has failed; the next op then reports the
  // failure.
  virtual int Mark() noexcept = 0;
  // Waits for the device. Returns the time of each mark in nanoseconds of steady_clock, exact to
  // some microseconds relative to the host and to half a microsecond among marks. Then no mark is
  // pending. The result is valid until the next call. Throws errors of enqueued ops.
  virtual std::span<const int64_t> Resolve() = 0;
};

}  // namespace switchyard::kernels
