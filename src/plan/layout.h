// A way to divide a model over devices, and the cluster that it runs on.
#pragma once

#include <string>
#include <vector>

#include "engine/config.h"

namespace switchyard::plan {

// Devices and links. `per_node` devices share a host.
struct Cluster {
  std::string card = "cpu";  // "h200", or "cpu"
  bool cuda = false;
  int per_node = 1, nodes = 1;
  int nics = 0;         // NICs of a node
  double nic_gbit = 0;  // nominal rate of one NIC
  int cpus = 1;         // CPUs of a node, for ranks on CPUs
  double memory = 0;    // bytes of a device; on CPUs: of a node
  int devices() const { return per_node * nodes; }
};

// The flags that the search varies.
struct Layout {
  MeshShape mesh;
  std::string a2a = "none";
  std::string mode = "auto";
  std::string runner = "auto";
  int redundant = 0;
  bool tbo = false, sbo = false;  // two-batch overlap, single-batch overlap
  int32_t chunk = 0;              // 0: the engine's default

  // "tp8-ep8-dp8-dense1-deepep-tbo", "tp2-pp4-ep2": parts that equal their default are left out.
  std::string Name() const;
};

bool operator==(const Layout& a, const Layout& b);

// Reads what Name writes. Error kInvalid names the part, and the known ones. Sizes and pp · tp are
// at most 65536.
Layout ParseLayout(const std::string& name);

// The engine's configuration of a layout, from flags that all layouts share.
EngineConfig ConfigOf(const Layout& layout, const EngineConfig& base);
// The layout that the flags of `config` describe, so that ConfigOf(LayoutOf(config), config) has
// the sizes of `config`.
Layout LayoutOf(const EngineConfig& config);
// " --tp-size 8 --ep-size 8 ...", without the defaults of `serve`.
std::string FlagsOf(const Layout& layout);

// Every layout whose sizes divide each other and the cluster. The engine's own checks decide later
// which of them it accepts. `stages`: number of pipeline stages of the layouts; 0: any number on
// CPUs, and one on GPUs, whose times of stages were not measured. With 0, layouts with several
// stages have ep and dp of 1 or tp only, because a host with many CPUs has thousands of layouts.
std::vector<Layout> EnumerateLayouts(const Cluster& cluster, const ModelConfig& model,
                                     int stages = 0);

}  // namespace switchyard::plan
