// Entry points of libswitchyard.so. The linker takes from the archives only what these refer to.
#include "apps/main.h"
#include "server/offline/engine.h"

extern "C" {

// main() of the program.
[[gnu::visibility("default")]] int switchyard_main(int argc, char** argv) {
  return switchyard::Main(argc, argv);
}

// Not called: takes the offline engine, which the extension module calls, from its archive.
[[gnu::used]] void switchyard_keep_engine() { const switchyard::offline::Engine engine({}); }
}
