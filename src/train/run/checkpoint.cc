#include "train/run/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/safetensors_writer.h"
#include "train/layers/lora.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The ranks that write files, and the index of this rank among them; -1: this rank writes no file.
struct Writers {
  int count = 0, index = -1;
  std::vector<int> index_of_rank;
};

Writers WritersOf(const Catalog& catalog) {
  std::set<int> ranks;
  for (const auto& [name, tensor] : catalog.tensors()) ranks.insert(tensor.writer);
  Writers out;
  out.index_of_rank.assign(static_cast<size_t>(catalog.size()), -1);
  for (const int rank : ranks) out.index_of_rank[static_cast<size_t>(rank)] = out.count++;
  out.index = out.index_of_rank[static_cast<size_t>(catalog.rank())];
  return out;
}

std::string FileName(const char* stem, int index, int count) {
  return count == 1 ? fmt::format("{}.safetensors", stem)
                    : fmt::format("{}-{:05}-of-{:05}.safetensors", stem, index + 1, count);
}

DType StoredAs(bool exact, DType dtype) { return exact ? DType::kF32 : dtype; }

// A whole tensor that this rank writes.
struct AssembledTensor {
  std::string name;
  const CatalogTensor* tensor;
  const float *value, *first = nullptr, *second = nullptr;  // value and moments; null: no optimizer
  const float* merged = nullptr;  // value with the LoRA adapter; null: it has none
};
struct AssembledTensors {
  std::vector<AssembledTensor> tensors;
  std::deque<std::vector<float>> room;  // owns the assembled partitioned tensors
};

// Collects the tensors that this rank writes; `copies`: copies tensors that are not partitioned,
// too. Collective over each TP group that writes a partitioned tensor, and over the copies of each
// parameter with shards.
AssembledTensors Collect(const Catalog& catalog, AdamW* optimizer, bool copies) {
  std::map<std::string, const AdamW::Moments*> moments;
  for (size_t i = 0; optimizer != nullptr && i < optimizer->parameters().size(); ++i) {
    const Parameter<float>& p = *optimizer->parameters()[i];
    if (p.trained()) moments[p.name] = &optimizer->moments()[i];
  }
  AssembledTensors out;
  for (const Parameter<float>* p : catalog.parameters()) {
    const CatalogTensor& tensor = catalog.tensors().at(p->name);
    const bool mine = tensor.writer == catalog.rank();
    const auto at = moments.find(p->name);
    AdamW::Moments joined;  // if they have shards
    if (at != moments.end() && p->shards.partial()) {
      joined.first = catalog.GatherShards(*p, at->second->first);
      joined.second = catalog.GatherShards(*p, at->second->second);
    }
    if (tensor.cut() ? !catalog.GroupWrites(p->name) : !mine) continue;
    const auto whole = [&](const std::vector<float>& part, bool stays) -> const float* {
      if (!tensor.cut() && stays) return part.data();
      out.room.push_back(tensor.cut() ? catalog.Assemble(*p, part) : part);
      return out.room.back().data();
    };
    AssembledTensor each{p->name, &tensor, whole(p->value, !copies)};
    if (at != moments.end()) {
      const bool shards = p->shards.partial();
      const AdamW::Moments& moment = shards ? joined : *at->second;
      each.first = whole(moment.first, !copies && !shards);
      each.second = whole(moment.second, !copies && !shards);
    }
    if (p->adapter.a != nullptr) each.merged = whole(MergedValue(*p), false);
    if (mine) out.tensors.push_back(each);
  }
  return out;
}

// The map from alias to tensor name, over all ranks.
std::map<std::string, std::string> GatherAliases(const Catalog& catalog,
                                                 const CheckpointFiles& files) {
  Json mine = Json::object();
  for (const auto& [alias, p] : files.aliases) mine[alias] = p->name;
  std::map<std::string, std::string> all;
  for (const std::string& list : GatherStrings(catalog.all(), mine.dump())) {
    const auto theirs = Json::parse(list).get<std::map<std::string, std::string>>();
    all.insert(theirs.begin(), theirs.end());
  }
  return all;
}

size_t Elements(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (const int64_t n : shape) count *= static_cast<size_t>(n);
  return count;
}

// Runs `work` and shares its error with all ranks, so that all continue or all throw.
void RunOnAllRanks(Collectives* all, const std::function<void()>& work) {
  std::string mine;
  try {
    work();
  } catch (const Error& error) {
    mine = error.what();
  } catch (const std::exception& error) {
    mine = fmt::format("the checkpoint cannot be written: {}", error.what());
  }
  for (const std::string& error : GatherStrings(all, mine)) {
    if (!error.empty()) throw Error(ErrorKind::kResource, error);
  }
}

void WriteWeights(const fs::path& dir, const AssembledTensors& wholes, const CheckpointFiles& files,
                  const std::map<std::string, std::string>& aliases, const Writers& writers) {
  SafetensorsWriter writer;
  std::deque<std::vector<BF16>> bf16_values;
  const auto add = [&](const std::string& name, const AssembledTensor& w) {
    const std::vector<int64_t>& shape = w.tensor->shape;
    const float* value = w.merged != nullptr ? w.merged : w.value;
    if (StoredAs(w.tensor->exact, files.dtype) == DType::kF32) {
      writer.AddView(name, DType::kF32, shape, value);
      return;
    }
    std::vector<BF16>& half = bf16_values.emplace_back(Elements(shape));
    std::transform(value, value + half.size(), half.begin(), ToBF16);
    writer.AddView(name, DType::kBF16, shape, half.data());
  };
  for (const AssembledTensor& w : wholes.tensors) {
    if (IsAdapter(w.name)) continue;
    add(w.name, w);
    for (const auto& [alias, name] : aliases)
      if (name == w.name) add(alias, w);
  }
  writer.SetMetadata("format", "pt");
  writer.Write(dir / FileName("model", writers.index, writers.count));
}

void WriteOptimizer(const fs::path& dir, const AssembledTensors& wholes, const Writers& writers) {
  SafetensorsWriter writer;
  for (const AssembledTensor& w : wholes.tensors) {
    const std::vector<int64_t>& shape = w.tensor->shape;
    writer.AddView("master." + w.name, DType::kF32, shape, w.value);
    if (w.first == nullptr) continue;
    writer.AddView("first." + w.name, DType::kF32, shape, w.first);
    writer.AddView("second." + w.name, DType::kF32, shape, w.second);
  }
  writer.Write(dir / FileName("optimizer", writers.index, writers.count));
}

void WriteJson(const fs::path& path, const Json& json) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << json.dump(2) << '\n';
  out.close();
  if (!out) throw Resource("{}: cannot be written", path.string());
}

// Writes the Hugging Face index that maps each weight to its file, if there are several files.
void WriteIndex(const fs::path& dir, const Catalog& catalog, const CheckpointFiles& files,
                const std::map<std::string, std::string>& aliases, const Writers& writers) {
  if (writers.count == 1) return;
  Json map = Json::object();
  size_t bytes = 0;
  const auto add = [&](const std::string& name, const CatalogTensor& tensor) {
    map[name] =
        FileName("model", writers.index_of_rank[static_cast<size_t>(tensor.writer)], writers.count);
    bytes += Elements(tensor.shape) * SizeOf(StoredAs(tensor.exact, files.dtype));
  };
  for (const auto& [name, tensor] : catalog.tensors())
    if (!IsAdapter(name)) add(name, tensor);
  for (const auto& [alias, name] : aliases) add(alias, catalog.tensors().at(name));
  WriteJson(dir / "model.safetensors.index.json",
            {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}});
}

Json ToJson(const TrainerState& state, int64_t optimizer_steps) {
  return {{"format", 1},
          {"step", state.step},
          {"epoch", state.position.epoch},
          {"row", state.position.row},
          {"corpus", state.corpus},
          {"tokens", state.tokens},
          {"seconds", state.seconds},
          {"optimizer_steps", optimizer_steps},
          {"skipped_in_a_row", state.history.skipped},
          {"recent_losses", state.history.losses},
          {"recent_gradient_norms", state.history.norms}};
}

// Makes the file names of a folder durable against power loss.
void SyncFolder(const fs::path& dir) {
  const int folder = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  ::fsync(folder);
  ::close(folder);
}

void Publish(const fs::path& part, const fs::path& dir) {
  SyncFolder(part);
  const fs::path old = part.string() + ".old";
  const bool replaces = fs::exists(dir);
  if (replaces) fs::rename(dir, old);
  try {
    fs::rename(part, dir);
  } catch (const fs::filesystem_error&) {
    if (replaces) fs::rename(old, dir);
    throw;
  }
  SyncFolder(dir.parent_path());
  fs::remove_all(old);
}

void RemovePart(const fs::path& part) {
  std::error_code ignored;
  fs::remove_all(part, ignored);
}

// A checkpoint between its collective steps. Prepare, Write and Publish are called once, in this
// order. Write involves no other rank.
class Save {
 public:
  Save(const fs::path& dir, const Catalog& catalog, AdamW* optimizer, const TrainerState& state,
       CheckpointFiles files)
      : dir_(dir),
        part_(dir.parent_path() / ("." + dir.filename().string() + ".part")),
        catalog_(catalog),
        state_(state),
        files_(std::move(files)),
        writers_(WritersOf(catalog)),
        has_optimizer_(optimizer != nullptr),
        optimizer_steps_(has_optimizer_ ? optimizer->steps() : 0) {}

  // `copies`: whether all tensors are copied, so that Write may run while the model changes.
  void Prepare(AdamW* optimizer, bool copies) {
    aliases_ = GatherAliases(catalog_, files_);
    wholes_ = Collect(catalog_, optimizer, copies);
    RunOnAllRanks(catalog_.all(), [&] {
      if (!first()) return;
      fs::remove_all(part_);
      fs::create_directories(part_);
    });
  }
  void Write() const {
    if (writers_.index < 0) return;
    WriteWeights(part_, wholes_, files_, aliases_, writers_);
    if (has_optimizer_) WriteOptimizer(part_, wholes_, writers_);
  }
  void Publish() const {
    RunOnAllRanks(catalog_.all(), [&] {
      if (!first()) return;
      WriteIndex(part_, catalog_, files_, aliases_, writers_);
      for (const fs::path& file : files_.copied) {
        fs::copy_file(file, part_ / file.filename(), fs::copy_options::overwrite_existing);
      }
      if (has_optimizer_) WriteJson(part_ / "trainer.json", ToJson(state_, optimizer_steps_));
      switchyard::train::Publish(part_, dir_);
    });
  }
  void Discard() const {
    if (first()) RemovePart(part_);
  }
  const Catalog& catalog() const { return catalog_; }

 private:
  bool first() const { return catalog_.rank() == 0; }

  const fs::path dir_, part_;
  const Catalog& catalog_;
  const TrainerState state_;
  const CheckpointFiles files_;
  const Writers writers_;
  const bool has_optimizer_;
  const int64_t optimizer_steps_;
  std::map<std::string, std::string> aliases_;
  AssembledTensors wholes_;
};

}  // namespace

void SaveCheckpoint(const fs::path& dir, const Catalog& catalog, AdamW* optimizer,
                    const TrainerState& state, const CheckpointFiles& files) {
  Save save(dir, catalog, optimizer, state, files);
  try {
    save.Prepare(optimizer, /*copies=*/false);
    RunOnAllRanks(catalog.all(), [&] { save.Write(); });
    save.Publish();
  } catch (const Error&) {
    save.Discard();
    throw;
  }
}

struct CheckpointWrite::Impl {
  Save save;
  bool published = false;
  std::exception_ptr error;  // of the thread; read it after the join
  std::atomic<bool> written{false};
  std::thread thread;
};

CheckpointWrite::CheckpointWrite(const fs::path& dir, const Catalog& catalog, AdamW* optimizer,
                                 const TrainerState& state, const CheckpointFiles& files)
    : impl_(new Impl{.save = Save(dir, catalog, optimizer, state, files)}) {
  Impl& my = *impl_;
  try {
    my.save.Prepare(optimizer, /*copies=*/true);
  } catch (const Error&) {
    my.save.Discard();
    throw;
  }
  my.thread = std::thread([&my] {
    pthread_setname_np(pthread_self(), "checkpoint");
    try {
      my.save.Write();
    } catch (...) {
      my.error = std::current_exception();
    }
    my.written = true;
  });
}

CheckpointWrite::~CheckpointWrite() {
  if (impl_->thread.joinable()) impl_->thread.join();
  if (!impl_->published) impl_->save.Discard();
}

bool CheckpointWrite::written() const { return impl_->written; }

void CheckpointWrite::Publish() {
  Impl& my = *impl_;
  my.thread.join();
  RunOnAllRanks(my.save.catalog().all(), [&my] {
    if (my.error != nullptr) std::rethrow_exception(my.error);
  });
  my.save.Publish();
  my.published = true;
}

}  // namespace switchyard::train
