# SPDX-License-Identifier: Apache-2.0
# How prepare has llama-cpp-python compiled: CMake includes this after each project(). ggml, which computes, is hardly optimised;
# llama.cpp, which calls it, is not; and its common/, which only its programs need, is left out.
if(PROJECT_NAME STREQUAL "ggml")
    set(CMAKE_C_FLAGS_RELEASE -O1)
    set(CMAKE_CXX_FLAGS_RELEASE -O1)
elseif(PROJECT_NAME STREQUAL "llama.cpp")
    set(LLAMA_BUILD_COMMON OFF)
    set(CMAKE_CXX_FLAGS_RELEASE -O0)
endif()
