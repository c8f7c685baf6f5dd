# Device code: nvcc 13, machine code for Hopper, and for other GPUs an intermediate form that their driver compiles.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  # 90a: Hopper's own instructions (wgmma, TMA). The intermediate form for Ampere serves plain kernels on all GPUs from
  # Ampere on.
  set(CMAKE_CUDA_ARCHITECTURES 90a-real 80-virtual)
endif()
enable_language(CUDA)
# CMake 3.25 does not know that this compiler has C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
endif()
find_package(CUDAToolkit 13 REQUIRED)
