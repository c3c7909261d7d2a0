# llama.cpp: find its source, build its static archives once a user, import them.
#
# Sets  LLAMA_CPP_SOURCE_DIR   the source, for headers
#       LLAMA_CPP_VERSION_TEXT what pd2_llama_cpp_pin() says
#       GGML_*                 what its archives were built with
# Adds  target llama_cpp       llama, ggml, its back ends and what those link

set(PYDFLASH2_LLAMA_CPP_DIR "" CACHE PATH "llama.cpp source to build against instead of the pinned one")
set(LLAMA_CPP_PIN_FILE ${CMAKE_CURRENT_LIST_DIR}/llama_cpp_pin.txt)
set(LLAMA_CPP_FETCH ${CMAKE_CURRENT_LIST_DIR}/fetch_llama_cpp.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${LLAMA_CPP_PIN_FILE} ${LLAMA_CPP_FETCH})

function(pd2_user_cache result)
    if(DEFINED ENV{XDG_CACHE_HOME})
        set(cache $ENV{XDG_CACHE_HOME})
    elseif(WIN32)
        set(cache $ENV{LOCALAPPDATA})
    elseif(DEFINED ENV{HOME})
        set(cache $ENV{HOME}/.cache)
    else()
        set(cache ${CMAKE_BINARY_DIR}/cache)
    endif()
    file(TO_CMAKE_PATH "${cache}/pydflash2" cache)
    set(${result} ${cache} PARENT_SCOPE)
endfunction()

# First hit wins: the folder asked for, our sdist's copy, the user's cache, pip into that cache.
function(pd2_find_llama_cpp)
    file(READ ${LLAMA_CPP_PIN_FILE} pin)
    string(REGEX MATCH "llama.cpp commit: ([0-9a-f]+)" _ "${pin}")
    set(commit ${CMAKE_MATCH_1})
    string(REGEX MATCH "\n(llama-cpp-python)==([^ ]+) +--hash=sha256:([0-9a-f]+)" _ "${pin}")
    set(version_text "${CMAKE_MATCH_1} ${CMAKE_MATCH_2} (llama.cpp ${commit})")
    string(SUBSTRING ${CMAKE_MATCH_3} 0 8 short_digest)
    pd2_user_cache(cache)
    file(SHA256 ${LLAMA_CPP_FETCH} wanted)  # what is taken out of the archive is written there
    string(SUBSTRING ${wanted} 0 4 wanted)
    set(cached ${cache}/llama.cpp-${short_digest}-${wanted})
    set(carried ${PROJECT_SOURCE_DIR}/third_party/llama.cpp)

    set(asked "${PYDFLASH2_LLAMA_CPP_DIR}")
    if(NOT asked)
        file(TO_CMAKE_PATH "$ENV{PYDFLASH2_LLAMA_CPP_DIR}" asked)
    endif()
    if(asked)
        set(source ${asked})
        set(version_text "a llama.cpp of the builder's own (PYDFLASH2_LLAMA_CPP_DIR)")
        foreach(file src/llama-ext.h common/json-schema.h)
            if(NOT EXISTS ${source}/${file})
                message(FATAL_ERROR "PYDFLASH2_LLAMA_CPP_DIR is ${asked}, which holds no llama.cpp source of our pin's "
                        "age (no ${file}). Point it at llama.cpp's top folder, or unset it.")
            endif()
        endforeach()
    elseif(EXISTS ${carried}/include/llama.h)
        set(source ${carried})
    else()
        set(source ${cached})
        if(NOT EXISTS ${cached}/include/llama.h)
            message(STATUS "Fetching ${version_text} into ${cached}")
            execute_process(COMMAND ${Python_EXECUTABLE} ${LLAMA_CPP_FETCH} ${cached} RESULT_VARIABLE failed)
            if(failed)
                message(FATAL_ERROR "No llama.cpp source, which pydflash2 is built from. Looked, in this order, for\n"
                        "  1. PYDFLASH2_LLAMA_CPP_DIR, a CMake or environment variable: not set\n"
                        "  2. ${carried}, which our source distribution carries: absent\n"
                        "  3. ${cached}: absent\n"
                        "  4. ${version_text} from the package index: pip's error is above\n"
                        "Connect to a package index, build from our source distribution, or unpack llama.cpp yourself "
                        "and set PYDFLASH2_LLAMA_CPP_DIR.")
            endif()
        endif()
    endif()
    message(STATUS "llama.cpp: ${version_text} in ${source}")
    set(LLAMA_CPP_SOURCE_DIR ${source} PARENT_SCOPE)
    set(LLAMA_CPP_VERSION_TEXT ${version_text} PARENT_SCOPE)
endfunction()

# GCC's _tile_loadconfig names 8 of the 64 bytes it reads, so the optimiser drops the rest of ggml's tile configuration and
# the first AMX instruction is an illegal one (llama.cpp's pull request 26954 has the same finding). Clang is not affected.
function(pd2_broken_amx_flags result)
    set(flags "")
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
        include(CheckCCompilerFlag)
        foreach(part tile int8 bf16)
            check_c_compiler_flag(-mno-amx-${part} PYDFLASH2_HAS_NO_AMX_${part})
            if(PYDFLASH2_HAS_NO_AMX_${part})
                string(APPEND flags " -mno-amx-${part}")
            endif()
        endforeach()
    endif()
    set(${result} "${flags}" PARENT_SCOPE)
endfunction()

# llama.cpp's Vulkan back end names types that headers before 1.3.272 lack: then a header of ours is read before its sources, from
# the user's cache, so that builds from any folder share archives.
function(pd2_vulkan_flags result)
    set(flags "")
    if(GGML_VULKAN)
        find_package(Vulkan QUIET)
        if(Vulkan_VERSION AND Vulkan_VERSION VERSION_LESS 1.3.272)
            set(header ${PROJECT_SOURCE_DIR}/cmake/vulkan_layer_settings.h)
            file(SHA256 ${header} digest)
            string(SUBSTRING ${digest} 0 8 digest)
            pd2_user_cache(cache)
            configure_file(${header} ${cache}/vulkan_layer_settings-${digest}.h COPYONLY)
            set(flags " -include ${cache}/vulkan_layer_settings-${digest}.h")
        endif()
    endif()
    set(${result} "${flags}" PARENT_SCOPE)
endfunction()

# The settings llama.cpp is configured with, as an initial cache file: ours, then everything the user gave on CMake's
# command line (CMAKE_ARGS): GGML_CUDA, GGML_NATIVE, CMAKE_CUDA_ARCHITECTURES, ...
function(pd2_llama_cpp_settings result)
    set(settings "")
    foreach(off BUILD_SHARED_LIBS LLAMA_BUILD_COMMON LLAMA_BUILD_TESTS LLAMA_BUILD_TOOLS LLAMA_BUILD_EXAMPLES
                LLAMA_BUILD_SERVER LLAMA_BUILD_APP LLAMA_BUILD_UI LLAMA_USE_PREBUILT_UI LLAMA_OPENSSL)
        string(APPEND settings "set(${off} OFF CACHE BOOL \"\")\n")
    endforeach()
    if(NOT DEFINED GGML_RPC)  # a few hundred KB, and targets can lie on other machines
        string(APPEND settings "set(GGML_RPC ON CACHE BOOL \"\")\n")
    endif()
    foreach(on CMAKE_POSITION_INDEPENDENT_CODE CMAKE_VISIBILITY_INLINES_HIDDEN)
        string(APPEND settings "set(${on} ON CACHE BOOL \"\")\n")
    endforeach()
    foreach(language C CXX CUDA OBJC)
        string(APPEND settings "set(CMAKE_${language}_VISIBILITY_PRESET hidden CACHE STRING \"\")\n")
    endforeach()

    if(GGML_CUDA)  # llama.cpp would take NCCL where it finds it, but its package does not name it
        string(APPEND settings "set(GGML_CUDA_NCCL OFF CACHE BOOL \"\")\n")
    endif()
    set(own_c_flags "${CMAKE_C_FLAGS}")
    if(APPLE)  # Objective-C classes are global to a process: a second copy of ggml must not find ours
        string(APPEND own_c_flags " -DGGMLMetalClass=PyDFlash2MetalClass")
    endif()
    set(own_cxx_flags "${CMAKE_CXX_FLAGS}")
    pd2_broken_amx_flags(no_amx)
    string(APPEND own_c_flags "${no_amx}")
    string(APPEND own_cxx_flags "${no_amx}")
    pd2_vulkan_flags(vulkan)
    string(APPEND own_cxx_flags "${vulkan}")
    string(APPEND settings "set(CMAKE_C_FLAGS [==[${own_c_flags}]==] CACHE STRING \"\")\n"
                           "set(CMAKE_CXX_FLAGS [==[${own_cxx_flags}]==] CACHE STRING \"\")\n")
    foreach(name CMAKE_TOOLCHAIN_FILE CMAKE_OSX_ARCHITECTURES CMAKE_OSX_DEPLOYMENT_TARGET CMAKE_OSX_SYSROOT)
        if(NOT "${${name}}" STREQUAL "")
            string(APPEND settings "set(${name} [==[${${name}}]==] CACHE STRING \"\")\n")
        endif()
    endforeach()

    pd2_given_settings(given)
    string(APPEND settings "${given}")
    set(${result} "${settings}" PARENT_SCOPE)
endfunction()

# Two builds may share archives when this text is the same: source, settings, compilers and, unless GGML_NATIVE is off,
# the instructions of this machine's CPU (a home directory may be shared by unlike machines).
function(pd2_llama_cpp_key settings result)
    set(key "${settings}")
    foreach(folder cmake ggml include src)
        file(GLOB_RECURSE files ${LLAMA_CPP_SOURCE_DIR}/${folder}/*)
        foreach(file IN LISTS files)
            file(SHA256 ${file} digest)
            file(RELATIVE_PATH name ${LLAMA_CPP_SOURCE_DIR} ${file})
            string(APPEND key "${name} ${digest}\n")
        endforeach()
    endforeach()
    foreach(language C CXX)
        get_filename_component(compiler ${CMAKE_${language}_COMPILER} REALPATH)  # cc, gcc and gcc-12 may be one
        string(APPEND key "${compiler} ${CMAKE_${language}_COMPILER_ID} ${CMAKE_${language}_COMPILER_VERSION} ")
    endforeach()
    foreach(name CFLAGS CXXFLAGS CUDACXX CUDAARCHS CUDAFLAGS HIPCXX SOURCE_DATE_EPOCH)
        string(APPEND key "${name}=$ENV{${name}} ")
    endforeach()
    if(NOT DEFINED GGML_NATIVE OR GGML_NATIVE)
        foreach(flag -march=native -mcpu=native)
            execute_process(COMMAND ${CMAKE_C_COMPILER} ${flag} -dM -E -x c /dev/null
                            OUTPUT_VARIABLE macros ERROR_QUIET)
            string(APPEND key "${macros}")
        endforeach()
    endif()
    string(SHA256 digest "${key}")
    string(SUBSTRING ${digest} 0 16 digest)
    set(${result} ${digest} PARENT_SCOPE)
endfunction()

# Builds and installs llama.cpp into `prefix`, which appears complete or not at all.
function(pd2_build_llama_cpp settings prefix)
    get_filename_component(cache ${prefix} DIRECTORY)
    file(MAKE_DIRECTORY ${cache})
    file(LOCK ${prefix}.lock GUARD FUNCTION TIMEOUT 7200)
    if(EXISTS ${prefix})
        message(STATUS "llama.cpp has been built into ${prefix}")
        return()
    endif()
    message(STATUS "llama.cpp is being built, for minutes, once, into ${prefix}")
    set(work ${prefix}.work)
    file(REMOVE_RECURSE ${work})
    file(WRITE ${work}/settings.cmake "${settings}")
    set(jobs "")
    if(NOT CMAKE_GENERATOR MATCHES Ninja AND NOT DEFINED ENV{CMAKE_BUILD_PARALLEL_LEVEL})
        cmake_host_system_information(RESULT cores QUERY NUMBER_OF_PHYSICAL_CORES)
        set(jobs --parallel ${cores})
    endif()
    # llama.cpp asks git for its commit: it must not be answered by a repository around its folder
    get_filename_component(above ${LLAMA_CPP_SOURCE_DIR} DIRECTORY)
    set(ENV{GIT_CEILING_DIRECTORIES} ${above})
    set(configure -C ${work}/settings.cmake -G ${CMAKE_GENERATOR} -S ${LLAMA_CPP_SOURCE_DIR} -B ${work}/build
                  -DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM} -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib
                  -DCMAKE_C_COMPILER=${CMAKE_C_COMPILER} -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER})
    set(build --build ${work}/build --config Release --target llama ${jobs})
    set(install --install ${work}/build --config Release --prefix ${work}/prefix)
    foreach(step configure build install)
        execute_process(COMMAND ${CMAKE_COMMAND} ${${step}} RESULT_VARIABLE failed
                        OUTPUT_FILE ${work}/log.txt ERROR_FILE ${work}/log.txt)
        if(failed)
            file(READ ${work}/log.txt log)
            message(FATAL_ERROR "llama.cpp did not build (${failed}). Its log, also in ${work}/log.txt:\n${log}")
        endif()
    endforeach()
    file(COPY ${work}/settings.cmake DESTINATION ${work}/prefix)  # for who wonders what this folder is
    file(RENAME ${work}/prefix ${prefix})
    file(REMOVE_RECURSE ${work})
endfunction()

macro(pd2_import_llama_cpp prefix)  # no function: GGML_*, as its package says it was built with, are for everybody
    list(PREPEND CMAKE_PREFIX_PATH ${prefix})  # before a llama.cpp that is installed system-wide
    unset(llama_LIBRARY CACHE)
    unset(llama_DIR CACHE)
    unset(ggml_DIR CACHE)
    find_package(llama CONFIG REQUIRED)
    add_library(llama_cpp INTERFACE)
    target_link_libraries(llama_cpp INTERFACE llama)
    if(GGML_CUDA)  # llama.cpp's package names these only for GGML_STATIC
        find_package(CUDAToolkit REQUIRED)
        target_link_libraries(llama_cpp INTERFACE CUDA::cudart CUDA::cublas)
    endif()
    if(UNIX AND NOT APPLE)
        target_link_libraries(llama_cpp INTERFACE ${CMAKE_DL_LIBS})
    endif()
endmacro()

pd2_find_llama_cpp()
pd2_llama_cpp_settings(settings)
pd2_llama_cpp_key("${settings}" key)
pd2_user_cache(cache)
pd2_build_llama_cpp("${settings}" ${cache}/build-${key})
pd2_import_llama_cpp(${cache}/build-${key})
