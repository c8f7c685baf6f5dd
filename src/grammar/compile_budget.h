// Limits and messages of XGrammar while a thread compiles a grammar.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace switchyard {

// Applies to the calling thread during its lifetime. XGrammar reports the size of each token mask
// (SpendCompileBudget). Beyond a limit, that call throws Error kInvalid, which ends the
// compilation. Also records XGrammar's warnings: each one means that a part of the grammar would
// be ignored.
class CompileBudget {
 public:
  CompileBudget(std::chrono::milliseconds time, size_t mask_bytes);
  ~CompileBudget();
  CompileBudget(const CompileBudget&) = delete;
  CompileBudget& operator=(const CompileBudget&) = delete;

  void Spend(size_t bytes);
  void Warn(const std::string& message);
  // Throws Error kInvalid with the first warning, if there is one.
  void CheckWarnings() const;

  static CompileBudget* Current();  // of the calling thread, or null

 private:
  const std::chrono::milliseconds time_;
  const std::chrono::steady_clock::time_point deadline_;
  const size_t mask_bytes_;
  size_t spent_ = 0;
  std::string warning_;
  CompileBudget* const outer_;
};

}  // namespace switchyard
