#include "kernels/cuda/device/cuda_device_sequences.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "core/cuda/runtime.h"

namespace switchyard::cuda {

Graphs::~Graphs() { Clear(); }

void Graphs::Clear() {
  for (const Entry& entry : entries_) {
    if (entry.graph != nullptr) cudaGraphExecDestroy(entry.graph);
  }
  entries_.clear();
  by_key_.clear();
}

Graphs::Entry& Graphs::Find(uint64_t key) {
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return entries_.front();
  }
  if (entries_.size() == kMaxGraphs) {
    synchronize_();
    if (entries_.back().graph != nullptr) cudaGraphExecDestroy(entries_.back().graph);
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  entries_.push_front({.key = key});
  by_key_[key] = entries_.begin();
  return entries_.front();
}

void Graphs::Run(uint64_t key, const std::function<void()>& pass) {
  CHECK(!recording_);
  const bool seen = by_key_.contains(key) || by_key_.contains(key & ~kernels::Device::kVariant);
  if (!seen) {
    pass();
    Find(key);
    return;
  }
  Entry& entry = Find(key);
  if (entry.graph == nullptr) entry.graph = Record(pass);
  Check(cudaGraphLaunch(entry.graph, stream_), "graph launch");
}

cudaGraphExec_t Graphs::Record(const std::function<void()>& pass) {
  // Thread-local mode: other threads (other ranks) may allocate and synchronize during the capture.
  Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
        "begin of graph capture");
  cudaGraph_t graph = nullptr;
  recording_ = true;
  try {
    pass();
  } catch (...) {
    recording_ = false;
    cudaStreamEndCapture(stream_, &graph);
    cudaGetLastError();
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  recording_ = false;
  Check(cudaStreamEndCapture(stream_, &graph), "end of graph capture");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  Check(error, "graph instantiation");
  return exec;
}

namespace {
constexpr size_t kInt = sizeof(int32_t);

// The number of a sequence's keys that are in its pages.
int32_t KeysInPages(const kernels::SequenceSpan& s) {
  return s.branch == nullptr ? s.kv_len : std::min(s.kv_len, s.branch_begin);
}
}  // namespace

Sequences::Sequences(const kernels::CudaDeviceOptions& limits, Staging& staging,
                     const Graphs& graphs, cudaStream_t stream)
    : max_tokens_(limits.max_tokens),
      max_sequences_(limits.max_sequences),
      max_pages_(limits.max_pages),
      max_branch_(limits.max_branch),
      max_page_tables_(limits.max_branch > 0 && limits.max_page_tables > 0
                           ? std::min(limits.max_page_tables, limits.max_sequences)
                           : limits.max_sequences),
      staging_(staging),
      graphs_(graphs),
      stream_(stream),
      columns_((3 * max_sequences_ + max_tokens_) * kInt),
      pages_(max_page_tables_ * max_pages_ * kInt) {
  auto* columns = columns_.as<int32_t>();
  table_.row_begin = columns;
  table_.rows = columns + max_sequences_;
  table_.kv_len = columns + 2 * max_sequences_;
  table_.row_sequence = columns + 3 * max_sequences_;
  table_.pages = pages_.as<int32_t>();
  table_.max_pages = static_cast<int32_t>(max_pages_);
  if (max_branch_ == 0) return;
  table_.branch_stride = SequenceTable::kBranchHeader + static_cast<int32_t>(max_branch_);
  branches_ = DeviceMemory(max_sequences_ * table_.branch_stride * kInt);
  table_.branches = branches_.as<int32_t>();
}

int32_t* Sequences::HostMemory(size_t bytes) {
  if (bytes <= Staging::kSegmentBytes) return static_cast<int32_t*>(staging_.Reserve(bytes));
  large_.resize(bytes / kInt);
  return large_.data();
}

void Sequences::Upload(int32_t* to, const int32_t* from, size_t bytes) {
  if (bytes > Staging::kSegmentBytes) return staging_.CopyIn(to, from, bytes);
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_),
        "copy of the sequence table to the GPU");
}

void Sequences::Set(std::span<const kernels::SequenceSpan> sequences, int32_t page_size) {
  CHECK(!graphs_.recording());
  const auto count = static_cast<int64_t>(sequences.size());
  CHECK_LE(count, max_sequences_);
  CHECK_GT(page_size, 0);
  SequenceTable& t = table_;
  t.num_sequences = static_cast<int32_t>(count);
  t.page_size = page_size;
  t.num_rows = t.max_rows = t.max_kv_len = 0;
  for (const kernels::SequenceSpan& s : sequences) {
    t.num_rows = std::max(t.num_rows, s.row_begin + s.rows);
    t.max_rows = std::max(t.max_rows, s.rows);
    t.max_kv_len = std::max(t.max_kv_len, s.kv_len);
    CHECK_LE(s.kv_len - KeysInPages(s), max_branch_);
  }
  CHECK_LE(t.num_rows, max_tokens_);
  CHECK_LE(CeilDiv(t.max_kv_len, page_size), max_pages_);
  if (count == 0) return;

  const size_t bytes = (3 * max_sequences_ + t.num_rows) * kInt;
  int32_t* const columns = HostMemory(bytes);
  std::memset(columns, 0, 3 * max_sequences_ * kInt);
  int32_t* row_sequence = columns + 3 * max_sequences_;
  std::fill_n(row_sequence, t.num_rows, -1);
  for (int64_t i = 0; i < count; ++i) {
    const kernels::SequenceSpan& s = sequences[i];
    columns[i] = s.row_begin;
    columns[max_sequences_ + i] = s.rows;
    columns[2 * max_sequences_ + i] = s.kv_len;
    std::fill_n(row_sequence + s.row_begin, s.rows, static_cast<int32_t>(i));
  }
  Upload(columns_.as<int32_t>(), columns, bytes);
  FindPageTables(sequences, page_size);
  if (max_branch_ > 0) SetBranches(sequences);
  SetPages(CeilDiv(t.max_kv_len, page_size));
}

void Sequences::FindPageTables(std::span<const kernels::SequenceSpan> sequences,
                               int32_t page_size) {
  page_tables_.clear();
  table_of_.clear();
  for (const kernels::SequenceSpan& s : sequences) {
    const int64_t count = CeilDiv(KeysInPages(s), page_size);
    const bool shares =
        max_branch_ > 0 && !page_tables_.empty() && page_tables_.back().pages == s.pages;
    if (!shares) page_tables_.push_back({.pages = s.pages});
    page_tables_.back().count = std::max(page_tables_.back().count, count);
    table_of_.push_back(static_cast<int32_t>(page_tables_.size() - 1));
  }
  CHECK_LE(std::ssize(page_tables_), max_page_tables_);
}

// Page tables are copied with the width of the longest one in this batch. One copy has as many of
// them as fit a staging segment.
void Sequences::SetPages(int64_t width) {
  if (width == 0) return;
  const int64_t row_bytes = width * kInt, count = std::ssize(page_tables_);
  const auto segment = static_cast<int64_t>(Staging::kSegmentBytes);
  const int64_t at_once = std::max<int64_t>(1, segment / row_bytes);
  for (int64_t begin = 0; begin < count; begin += at_once) {
    const int64_t rows = std::min(at_once, count - begin);
    int32_t* const pages = HostMemory(rows * row_bytes);
    for (int64_t i = 0; i < rows; ++i) {
      const PageTable& table = page_tables_[begin + i];
      if (table.count > 0) std::memcpy(pages + i * width, table.pages, table.count * kInt);
      std::fill(pages + i * width + table.count, pages + (i + 1) * width, 0);
    }
    int32_t* const to = pages_.as<int32_t>() + begin * max_pages_;
    if (rows == 1) {
      Upload(to, pages, row_bytes);
      continue;
    }
    Check(cudaMemcpy2DAsync(to, max_pages_ * kInt, pages, row_bytes, row_bytes, rows,
                            cudaMemcpyHostToDevice, stream_),
          "copy of page tables to the GPU");
  }
}

void Sequences::SetBranches(std::span<const kernels::SequenceSpan> sequences) {
  const auto count = std::ssize(sequences);
  const int64_t stride = table_.branch_stride;
  const auto at_once = static_cast<int64_t>(Staging::kSegmentBytes / (stride * kInt));
  for (int64_t begin = 0; begin < count; begin += at_once) {
    const int64_t rows = std::min(at_once, count - begin);
    const size_t bytes = rows * stride * kInt;
    auto* const branches = static_cast<int32_t*>(staging_.Reserve(bytes));
    std::memset(branches, 0, bytes);
    for (int64_t i = 0; i < rows; ++i) {
      const kernels::SequenceSpan& s = sequences[begin + i];
      int32_t* const to = branches + i * stride;
      to[0] = s.branch == nullptr ? std::numeric_limits<int32_t>::max() : s.branch_begin;
      to[1] = table_of_[begin + i];
      std::copy_n(s.branch, s.kv_len - KeysInPages(s), to + SequenceTable::kBranchHeader);
    }
    Check(cudaMemcpyAsync(branches_.as<int32_t>() + begin * stride, branches, bytes,
                          cudaMemcpyHostToDevice, stream_),
          "copy of branches to the GPU");
  }
}

}  // namespace switchyard::cuda
