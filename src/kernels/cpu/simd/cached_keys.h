// Loads a block of cached keys and values as float32. Keys are transposed to columns, so that one
// chain along the elements computes the scores of a vector of keys. Values stay in rows.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/rows.h"

namespace switchyard::kernels::cpu::simd {

template <class V>
int64_t Padded(int64_t n) {
  return (n + V::kLanes - 1) / V::kLanes * V::kLanes;
}

// Keys [begin, end) of a block, relative to the block's start.
struct KeyRange {
  int64_t begin, end;
};

// Cached rows, read as float32 vectors. Formats: kernels/cache_rows.h.
template <class V>
struct E4M3CacheRow {
  const char* p;
  typename V::F At(int64_t j) const { return V::Mul(V::E4M3Over256(p + j), V::Set1(256.0f)); }
  typename V::F AtN(int64_t j, int64_t n) const {
    return V::Mul(V::E4M3Over256N(p + j, n), V::Set1(256.0f));
  }
};

template <class V>
struct Int8CacheRow {
  const char* p;
  float scale;
  typename V::F At(int64_t j) const { return V::Mul(V::Int8(p + j), V::Set1(scale)); }
  typename V::F AtN(int64_t j, int64_t n) const {
    return V::Mul(V::Int8N(p + j, n), V::Set1(scale));
  }
};

// Sets `out` to the cached row of `width` elements at p.
template <class Row>
void MakeCacheRow(const char* p, int64_t, Row* out) {
  out->p = p;
}
template <class V>
void MakeCacheRow(const char* p, int64_t width, Int8CacheRow<V>* out) {
  out->p = p;
  __builtin_memcpy(&out->scale, p + width, sizeof(out->scale));
}

// Calls f.template operator()<Row>() with the row type of the cache.
template <class V, class Function>
void ForCacheType(DType dtype, const Function& f) {
  switch (dtype) {
    case DType::kF32:
      return f.template operator()<F32Row<V>>();
    case DType::kBF16:
      return f.template operator()<BF16Row<V>>();
    case DType::kF16:
      return f.template operator()<F16Row<V>>();
    case DType::kF8E4M3:
      return f.template operator()<E4M3CacheRow<V>>();
    default:
      return f.template operator()<Int8CacheRow<V>>();
  }
}

// Addresses of the rows of a block; null outside the range.
struct KeyAddresses {
  const char* k[kKeyBlock];
  const char* v[kKeyBlock];
};

// Sets the addresses of keys [begin, end) of the block.
template <class V>
void ResolveKeys(const AttentionTask& t, int64_t block, KeyRange range, KeyAddresses& places) {
  int64_t key = block * kKeyBlock + range.begin;
  int64_t page = key / t.page_size, at = key % t.page_size;
  for (int64_t j = 0; j < kKeyBlock; ++j) {
    if (j < range.begin || j >= range.end) {
      places.k[j] = places.v[j] = nullptr;
      continue;
    }
    const bool in_branch = t.branch != nullptr && key >= t.branch_begin;
    const int64_t slot = in_branch ? int64_t{t.branch[key - t.branch_begin]}
                                   : int64_t{t.pages[page]} * t.page_size + at;
    ++key;
    places.k[j] = static_cast<const char*>(t.k) + slot * t.k_stride;
    places.v[j] = static_cast<const char*>(t.v) + slot * t.v_stride;
    if (++at == t.page_size) {
      at = 0;
      ++page;
    }
  }
}

// Transposes keys: out[d · kKeyBlock + j] is element d of key j; zero where there is no key.
template <class V, class Row>
void TransposeKeys(const KeyAddresses& places, int64_t width, float* out) {
  for (int64_t first = 0; first < kKeyBlock; first += V::kLanes) {
    Row rows[V::kLanes] = {};
    bool present[V::kLanes];
    for (int i = 0; i < V::kLanes; ++i) {
      const char* p = places.k[first + i];
      present[i] = p != nullptr;
      if (present[i]) MakeCacheRow(p, width, &rows[i]);
    }
    for (int64_t d = 0; d < width; d += V::kLanes) {
      const int64_t left = width - d;
      typename V::F x[V::kLanes];
      for (int i = 0; i < V::kLanes; ++i) {
        if (!present[i]) {
          x[i] = V::Zero();
        } else {
          x[i] = left >= V::kLanes ? rows[i].At(d) : rows[i].AtN(d, left);
        }
      }
      V::Transpose(x);
      float* to = out + d * kKeyBlock + first;
      for (int i = 0; i < V::kLanes && i < left; ++i) V::Store(to + i * kKeyBlock, x[i]);
    }
  }
}

}  // namespace switchyard::kernels::cpu::simd
