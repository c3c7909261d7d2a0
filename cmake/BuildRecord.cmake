# _native.json, which pydflash2/library.py reads before it loads the compiled module that lies beside it.

# Feature as /proc/cpuinfo names it, and the compilers' macro.
set(PD2_CPU_FEATURES
    pni:SSE3 ssse3:SSSE3 sse4_1:SSE4_1 sse4_2:SSE4_2 popcnt:POPCNT movbe:MOVBE abm:LZCNT avx:AVX f16c:F16C fma:FMA
    bmi1:BMI bmi2:BMI2 avx2:AVX2 avx_vnni:AVXVNNI avx512f:AVX512F avx512cd:AVX512CD avx512bw:AVX512BW
    avx512dq:AVX512DQ avx512vl:AVX512VL avx512ifma:AVX512IFMA avx512vbmi:AVX512VBMI avx512_vbmi2:AVX512VBMI2
    avx512_vnni:AVX512VNNI avx512_bitalg:AVX512BITALG avx512_vpopcntdq:AVX512VPOPCNTDQ avx512_bf16:AVX512BF16
    avx512_fp16:AVX512FP16 gfni:GFNI vaes:VAES vpclmulqdq:VPCLMULQDQ
    atomics:ARM_FEATURE_ATOMICS asimddp:ARM_FEATURE_DOTPROD asimdhp:ARM_FEATURE_FP16_VECTOR_ARITHMETIC
    i8mm:ARM_FEATURE_MATMUL_INT8 bf16:ARM_FEATURE_BF16_VECTOR_ARITHMETIC sve:ARM_FEATURE_SVE sve2:ARM_FEATURE_SVE2)

# What a CPU must have for code that was compiled as ggml's archives were. Their GGML_* variables come from ggml's own package.
function(pd2_required_cpu_features result)
    if(MSVC)  # its compiler defines few macros, and Windows can be asked about few features
        set(features "")
        foreach(feature sse4_2:SSE42 avx:AVX avx2:AVX2 avx512f:AVX512)
            string(REPLACE ":" ";" pair ${feature})
            list(GET pair 0 name)
            list(GET pair 1 option)
            if(GGML_${option})
                list(APPEND features ${name})
            endif()
        endforeach()
        set(${result} "${features}" PARENT_SCOPE)
        return()
    endif()

    set(flags "")
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64|i[3-6]86)$")
        if(GGML_NATIVE)
            set(flags -march=native)
        else()  # as ggml/src/ggml-cpu/CMakeLists.txt does
            foreach(option SSE42:sse4.2 AVX:avx AVX2:avx2 FMA:fma F16C:f16c BMI2:bmi2 AVX_VNNI:avxvnni
                           AVX512:avx512f AVX512:avx512cd AVX512:avx512vl AVX512:avx512dq AVX512:avx512bw
                           AVX512_VBMI:avx512vbmi AVX512_VNNI:avx512vnni AVX512_BF16:avx512bf16)
                string(REPLACE ":" ";" pair ${option})
                list(GET pair 0 name)
                list(GET pair 1 flag)
                if(GGML_${name})
                    list(APPEND flags -m${flag})
                endif()
            endforeach()
        endif()
    elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm.*|ARM64)$")
        if(GGML_NATIVE)
            set(flags -mcpu=native)
        elseif(GGML_CPU_ARM_ARCH)
            set(flags -march=${GGML_CPU_ARM_ARCH})
        endif()
    endif()  # else what the compiler does by itself
    separate_arguments(own_flags NATIVE_COMMAND "${CMAKE_C_FLAGS}")
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/empty.c "")
    execute_process(COMMAND ${CMAKE_C_COMPILER} ${own_flags} ${flags} -dM -E ${CMAKE_CURRENT_BINARY_DIR}/empty.c
                    OUTPUT_VARIABLE macros ERROR_VARIABLE error RESULT_VARIABLE failed)
    if(failed)
        message(FATAL_ERROR "${CMAKE_C_COMPILER} did not say which CPU it compiles for (${own_flags} ${flags}): ${error}")
    endif()
    set(features "")
    foreach(feature IN LISTS PD2_CPU_FEATURES)
        string(REPLACE ":" ";" pair ${feature})
        list(GET pair 0 name)
        list(GET pair 1 macro)
        if(macros MATCHES "#define __${macro}(__)? ")
            list(APPEND features ${name})
        endif()
    endforeach()
    set(${result} "${features}" PARENT_SCOPE)
endfunction()

function(pd2_json_list result)
    list(TRANSFORM ARGN REPLACE "(.+)" "\"\\1\"")
    list(JOIN ARGN ", " text)
    set(${result} "[${text}]" PARENT_SCOPE)
endfunction()

function(pd2_write_build_record file)
    file(STRINGS ${PROJECT_SOURCE_DIR}/pyproject.toml version REGEX "^version = " LIMIT_COUNT 1)
    string(REGEX MATCH "\"(.*)\"" _ "${version}")
    set(version ${CMAKE_MATCH_1})
    pd2_required_cpu_features(features)
    pd2_json_list(features ${features})
    list(TRANSFORM GGML_AVAILABLE_BACKENDS REPLACE "^ggml-" "" OUTPUT_VARIABLE backends)
    pd2_json_list(backends ${backends})
    file(WRITE ${file} "{\n"
        "  \"version\": \"${version}\",\n"
        "  \"llama_cpp\": \"${LLAMA_CPP_VERSION_TEXT}\",\n"
        "  \"backends\": ${backends},\n"
        "  \"cpu_features\": ${features}\n"
        "}\n")
    message(STATUS "The CPU must have: ${features}")
endfunction()
