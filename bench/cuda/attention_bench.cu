// Attention on one GPU, decoding and prompts, at the head counts of Qwen3-30B-A3B and DeepSeek-V3.
// One line per case: median time, bytes of keys and values and operations a second, and the share
// of the machine's roofline: the slower of those bytes at the bandwidth of reads of this run and
// those operations at the matrix units' rate.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "kernels/cuda/attention.h"

namespace {

using switchyard::DType;
using switchyard::cuda::SequenceTable;

constexpr int kRuns = 9;
constexpr int kPageSize = 64;
constexpr double kPeakFlops = 989e12;  // dense bf16 of an H200

void Check(cudaError_t error, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK_CUDA(call) Check((call), __LINE__)

template <typename T>
struct DeviceArray {
  explicit DeviceArray(size_t n) { CHECK_CUDA(cudaMalloc(&data, n * sizeof(T))); }
  explicit DeviceArray(const std::vector<T>& from) : DeviceArray(from.size()) {
    CHECK_CUDA(cudaMemcpy(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { cudaFree(data); }
  DeviceArray(const DeviceArray&) = delete;
  T* data = nullptr;
};

__device__ float Uniform(uint64_t index) {  // [−1, 1)
  index ^= index >> 33;
  index *= 0xff51afd7ed558ccdULL;
  index ^= index >> 33;
  index *= 0xc4ceb9fe1a85ec53ULL;
  return static_cast<float>(index >> 40) / 8388608.0f - 1.0f;
}
__device__ void Set(float* p, float x) { *p = x; }
__device__ void Set(__nv_bfloat16* p, float x) { *p = __float2bfloat16(x); }
template <typename T>
__global__ void Fill(T* p, size_t n, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    Set(p + i, 2.0f * Uniform(i + seed));
}

// Seconds of one of the `count` calls that `run` makes on a stream, as a graph.
double SecondsOfEach(int count, const std::function<void(cudaStream_t)>& run) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  CHECK_CUDA(cudaStreamCreate(&stream));
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  run(stream);
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<float> times(kRuns);
  for (float& ms : times) {
    CHECK_CUDA(cudaEventRecord(begin, stream));
    CHECK_CUDA(cudaGraphLaunch(replay, stream));
    CHECK_CUDA(cudaEventRecord(end, stream));
    CHECK_CUDA(cudaEventSynchronize(end));
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
  }
  CHECK_CUDA(cudaGraphExecDestroy(replay));
  CHECK_CUDA(cudaGraphDestroy(graph));
  CHECK_CUDA(cudaStreamDestroy(stream));
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2] * 1e-3 / count;
}

double CopyBandwidth() {  // bytes read and written a second
  constexpr size_t kBytes = size_t{1} << 30;
  const DeviceArray<char> from(kBytes), to(kBytes);
  const double seconds = SecondsOfEach(4, [&](cudaStream_t stream) {
    for (int i = 0; i < 4; ++i)
      CHECK_CUDA(cudaMemcpyAsync(to.data, from.data, kBytes, cudaMemcpyDeviceToDevice, stream));
  });
  return 2.0 * kBytes / seconds;
}

__global__ void Read(const uint4* from, size_t n, unsigned* sum) {
  uint4 x = {};
  const size_t step = size_t{gridDim.x} * blockDim.x * 4;
  for (size_t i = blockIdx.x * size_t{blockDim.x} * 4 + threadIdx.x; i < n; i += step) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = from[i + j * blockDim.x];
#pragma unroll
    for (int j = 0; j < 4; ++j) x.x ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (x.x == 12345) *sum = 1;
}
double ReadBandwidth() {
  constexpr size_t kBytes = size_t{2} << 30;
  const DeviceArray<char> from(kBytes);
  const DeviceArray<unsigned> sum(1);
  const double seconds = SecondsOfEach(4, [&](cudaStream_t stream) {
    for (int i = 0; i < 4; ++i)
      Read<<<2048, 256, 0, stream>>>(reinterpret_cast<const uint4*>(from.data), kBytes / 16,
                                     sum.data);
  });
  return kBytes / seconds;
}

struct Shape {
  const char* name;
  int heads, kv_heads, qk_dim, v_dim;  // latent where the last two differ
  bool latent() const { return qk_dim != v_dim; }
};

// `batch` sequences of `rows` query rows and `keys` keys each. Every call reads another layer's
// cache, so that none finds it in the L2 cache.
void Case(const Shape& s, int batch, int rows, int keys, bool exact, double bandwidth) {
  const int pages_each = (keys + kPageSize - 1) / kPageSize;
  const int64_t slots = int64_t{batch} * pages_each * kPageSize;
  const int64_t width = int64_t{s.kv_heads} * s.qk_dim;
  const int64_t cache_bytes = slots * width * 2 * (s.latent() ? 1 : 2);
  const int layers = static_cast<int>(std::clamp<int64_t>((200 << 20) / cache_bytes, 2, 48));
  const int64_t num_rows = int64_t{batch} * rows;
  const DeviceArray<__nv_bfloat16> k(layers * slots * width);
  const DeviceArray<__nv_bfloat16> v(s.latent() ? 1 : layers * slots * width);
  const DeviceArray<float> q(num_rows * s.heads * s.qk_dim), out(num_rows * s.heads * s.v_dim);
  const DeviceArray<std::byte> scratch(switchyard::cuda::kAttentionScratchBytes);
  Fill<<<1024, 256>>>(k.data, layers * slots * width, 1);
  if (!s.latent()) Fill<<<1024, 256>>>(v.data, layers * slots * width, uint64_t{1} << 40);
  Fill<<<1024, 256>>>(q.data, num_rows * s.heads * s.qk_dim, uint64_t{1} << 41);

  std::vector<int32_t> row_begin(batch), all_rows(batch, rows), kv_len(batch, keys);
  std::vector<int32_t> pages(int64_t{batch} * pages_each), row_sequence(num_rows);
  for (int i = 0; i < batch; ++i) row_begin[i] = i * rows;
  for (int64_t i = 0; i < num_rows; ++i) row_sequence[i] = static_cast<int32_t>(i / rows);
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
  const DeviceArray<int32_t> device_row_begin(row_begin), device_rows(all_rows),
      device_kv_len(kv_len), device_pages(pages), device_row_sequence(row_sequence);
  const SequenceTable table = {.row_begin = device_row_begin.data,
                               .rows = device_rows.data,
                               .kv_len = device_kv_len.data,
                               .pages = device_pages.data,
                               .row_sequence = device_row_sequence.data,
                               .num_sequences = batch,
                               .num_rows = static_cast<int32_t>(num_rows),
                               .max_pages = pages_each,
                               .page_size = kPageSize};
  const std::span<std::byte> room(scratch.data, switchyard::cuda::kAttentionScratchBytes);
  const auto call = [&](int layer, cudaStream_t stream) {
    const __nv_bfloat16* keys_of_layer = k.data + layer * slots * width;
    if (s.latent()) {
      switchyard::cuda::LatentAttention({.q = q.data,
                                         .ldq = int64_t{s.heads} * s.qk_dim,
                                         .cache = keys_of_layer,
                                         .kv_dtype = DType::kBF16,
                                         .heads = s.heads,
                                         .lora = s.v_dim,
                                         .rope = s.qk_dim - s.v_dim,
                                         .scale = 0.05f,
                                         .out = out.data,
                                         .ldo = int64_t{s.heads} * s.v_dim},
                                        table, exact, stream, room);
    } else {
      switchyard::cuda::Attention({.q = q.data,
                                   .ldq = int64_t{s.heads} * s.qk_dim,
                                   .k_cache = keys_of_layer,
                                   .v_cache = v.data + layer * slots * width,
                                   .kv_dtype = DType::kBF16,
                                   .heads = s.heads,
                                   .kv_heads = s.kv_heads,
                                   .head_dim = s.qk_dim,
                                   .scale = 0.1f,
                                   .out = out.data,
                                   .ldo = int64_t{s.heads} * s.v_dim},
                                  table, exact, stream, room);
    }
  };
  call(0, nullptr);  // asks the device what it asks once
  CHECK_CUDA(cudaDeviceSynchronize());
  const double seconds = SecondsOfEach(layers, [&](cudaStream_t stream) {
    for (int i = 0; i < layers; ++i) call(i, stream);
  });
  CHECK_CUDA(cudaDeviceSynchronize());
  const double visits = double{1.0} * batch * rows * (keys - (rows - 1) / 2.0);  // of a head
  const double flops = 2.0 * visits * s.heads * (s.qk_dim + s.v_dim);
  const double bytes =
      static_cast<double>(int64_t{batch} * keys * width * 2) * (s.latent() ? 1 : 2) +
      4.0 * num_rows * s.heads * (s.qk_dim + s.v_dim);
  const double least = std::max(bytes / bandwidth, flops / kPeakFlops);
  std::printf("%-22s %4d x %5d rows %6d keys%s %9.1f us %6.0f GB/s %6.1f TFLOP/s  %5.1f %%\n",
              s.name, batch, rows, keys, exact ? " exact" : "      ", seconds * 1e6,
              bytes / seconds * 1e-9, flops / seconds * 1e-12, 100 * least / seconds);
  std::fflush(stdout);
}

}  // namespace

int main() {
  const double bandwidth = ReadBandwidth();
  std::printf("bandwidth of reads %.0f GB/s, of a copy's reads and writes %.0f GB/s\n",
              bandwidth * 1e-9, CopyBandwidth() * 1e-9);
  const Shape qwen = {"qwen3-30b 32/4 x 128", 32, 4, 128, 128};
  const Shape oss = {"gpt-oss 64/8 x 64", 64, 8, 64, 64};
  const Shape mla = {"deepseek-v3 128 heads", 128, 1, 576, 512};
  const Shape mla8 = {"deepseek-v3 16 heads", 16, 1, 576, 512};
  for (const Shape& s : {qwen, oss, mla, mla8}) {
    for (const auto [batch, keys] :
         {std::pair{1, 1024}, std::pair{1, 4096}, std::pair{1, 32768}, std::pair{8, 4096},
          std::pair{32, 512}, std::pair{32, 4096}, std::pair{128, 1024}, std::pair{128, 4096}})
      Case(s, batch, 1, keys, false, bandwidth);
    for (const auto [batch, rows, keys] :
         {std::tuple{1, 256, 4096}, std::tuple{1, 1024, 1024}, std::tuple{1, 4096, 4096},
          std::tuple{8, 512, 512}, std::tuple{1, 2048, 16384}})
      Case(s, batch, rows, keys, false, bandwidth);
  }
  for (const Shape& s : {qwen, mla}) {
    Case(s, 32, 1, 4096, true, bandwidth);
    Case(s, 1, 256, 1024, true, bandwidth);
  }
}
