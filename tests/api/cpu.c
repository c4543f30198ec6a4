/* SPDX-License-Identifier: Apache-2.0 */
/* CPU-feature decoding, as a pure function, on recorded registers. */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/select.h"
#include "tap.h"

enum {
    SSE = RAPT_CPU_SSE41,
    HASWELL = SSE | RAPT_CPU_AVX | RAPT_CPU_F16C | RAPT_CPU_FMA | RAPT_CPU_AVX2,
    SKYLAKE_X = HASWELL | RAPT_CPU_AVX512F | RAPT_CPU_AVX512DQ | RAPT_CPU_AVX512BW | RAPT_CPU_AVX512VL,
    ALDER_LAKE = HASWELL | RAPT_CPU_AVXVNNI,
    CASCADE_LAKE = SKYLAKE_X | RAPT_CPU_AVX512VNNI,
    ZEN_4 = CASCADE_LAKE | RAPT_CPU_AVX512BF16,
    UNTILED_RAPIDS = ZEN_4 | RAPT_CPU_AVXVNNI,
    NEON_DOT = RAPT_CPU_NEON | RAPT_CPU_DOTPROD,
    NEON_ALL = NEON_DOT | RAPT_CPU_I8MM | RAPT_CPU_BF16,
    RAPIDS = UNTILED_RAPIDS | RAPT_CPU_AMX_TILE | RAPT_CPU_AMX_BF16 | RAPT_CPU_AMX_INT8 | RAPT_CPU_AMX_PERMISSION,
};

/* The highest leaf, leaf 1 ECX, leaf 7 EBX, ECX and EDX, its highest subleaf, EAX of its subleaf 1, XCR0, and whether Linux gave
 * tiles when it was asked, as the machines, or QEMU's models of them, report them. */
static const struct {
    const char *name;
    rapt_x86_registers registers;
    uint32_t features;
} x86[] = {
    {"Core 2 (Conroe): no SSE4.1", {0xa, 0x0000e3bd, 0, 0, 0, 0, 0, 0, false}, 0},
    {"Nehalem", {0xb, 0x009ce3bd, 0, 0, 0, 0, 0, 0, false}, SSE},
    {"Nehalem, the hypervisor shows leaf 1 alone", {0x1, 0x009ce3bd, 0, 0, 0, 0, 0, 0, false}, SSE},
    {"Nehalem, the hypervisor shows no leaf but 0", {0x0, 0x009ce3bd, 0, 0, 0, 0, 0, 0, false}, 0},
    {"Sandy Bridge: AVX, no AVX2, no FMA", {0xd, 0x1fbae3ff, 0x00000000, 0, 0, 0, 0, 0x7, false}, SSE | RAPT_CPU_AVX},
    {"Ivy Bridge: F16C too", {0xd, 0x7fbae3ff, 0x00000281, 0, 0, 0, 0, 0x7, false}, SSE | RAPT_CPU_AVX | RAPT_CPU_F16C},
    {"Haswell", {0xd, 0x7ffafbff, 0x000027ab, 0, 0, 0, 0, 0x7, false}, HASWELL},
    {"Haswell, the OS has not set OSXSAVE: XCR0 may not even be read",
     {0xd, 0x77fafbff, 0x000027ab, 0, 0, 0, 0, 0x7, false},
     SSE},
    {"Haswell, the OS saves XMM only", {0xd, 0x7ffafbff, 0x000027ab, 0, 0, 0, 0, 0x3, false}, SSE},
    {"Haswell, the OS saves YMM without XMM (not allowed, but seen in bad emulators)",
     {0xd, 0x7ffafbff, 0x000027ab, 0, 0, 0, 0, 0x5, false},
     SSE},
    {"Haswell, leaf 7 hidden by the hypervisor", {0x6, 0x7ffafbff, 0x000027ab, 0, 0, 0, 0, 0x7, false}, HASWELL & ~RAPT_CPU_AVX2},
    {"Pentium Gold: no AVX at all", {0x16, 0x4ffaebbf, 0x009c67ab, 0, 0, 0, 0, 0x1f, false}, SSE},
    {"Skylake-X", {0x16, 0x7ffefbff, 0xd39ffffb, 0, 0, 0, 0, 0xe7, false}, SKYLAKE_X},
    {"Skylake-X, the OS saves no AVX-512 state", {0x16, 0x7ffefbff, 0xd39ffffb, 0, 0, 0, 0, 0x7, false}, HASWELL},
    {"Skylake-X, opmask state alone", {0x16, 0x7ffefbff, 0xd39ffffb, 0, 0, 0, 0, 0x27, false}, HASWELL},
    {"Skylake-X, AVX512F hidden: its extensions do not count", {0x16, 0x7ffefbff, 0xd39efffb, 0, 0, 0, 0, 0xe7, false}, HASWELL},
    {"Knights Landing: F without VL, BW, DQ", {0xd, 0x7ff8f3bf, 0x1c0d23ab, 0, 0, 0, 0, 0xe7, false}, HASWELL | RAPT_CPU_AVX512F},
    {"Zen 2", {0x10, 0x7ed8320b, 0x219c91a9, 0, 0, 0, 0, 0x207, false}, HASWELL},
    {"Zen 4: VNNI in AVX-512 only", {0x10, 0x7efa320b, 0xf1bf97a9, 0x00415fde, 0, 1, 0x20, 0x2e7, false}, ZEN_4},
    {"Zen 4, in a virtual machine", {0x1c, 0xfffa3203, 0xf1bf07ab, 0x00405fc6, 0x10, 1, 0x20, 0xe7, false}, ZEN_4},
    {"Zen 4, the hypervisor hides products of bf16",
     {0x1c, 0xfffa3203, 0xf1bf07ab, 0x00405fc6, 0x10, 1, 0x0, 0xe7, false},
     CASCADE_LAKE},
    {"Alder Lake (model 9A): VNNI without AVX-512",
     {0x20, 0x7ffafbbf, 0x239ca7eb, 0x984007ac, 0xfc18c410, 1, 0x00400810, 0x207, false},
     ALDER_LAKE},
    {"Alder Lake (Core i9-12900K)",
     {0x20, 0x7ffafbff, 0x239ca7eb, 0x98c027ac, 0xfc1cc410, 1, 0x00400810, 0x207, false},
     ALDER_LAKE},
    {"Alder Lake, the OS saves XMM only", {0x20, 0x7ffafbbf, 0x239ca7eb, 0x984007ac, 0xfc18c410, 1, 0x00400810, 0x3, false}, SSE},
    {"Alder Lake, the OS has not set OSXSAVE",
     {0x20, 0x77fafbbf, 0x239ca7eb, 0x984007ac, 0xfc18c410, 1, 0x00400810, 0x207, false},
     SSE},
    {"Alder Lake, AVX-VNNI hidden by the hypervisor",
     {0x20, 0x7ffafbbf, 0x239ca7eb, 0x984007ac, 0xfc18c410, 1, 0x00400800, 0x207, false},
     HASWELL},
    {"Alder Lake, subleaf 1 hidden: what is read there means nothing",
     {0x20, 0x7ffafbbf, 0x239ca7eb, 0x984007ac, 0xfc18c410, 0, 0xffffffff, 0x207, false},
     HASWELL},
    {"Alder Lake, leaf 7 hidden: its subleaf 1 neither",
     {0x6, 0x7ffafbbf, 0x239ca7eb, 0x984007ac, 0xfc18c410, 1, 0x00400810, 0x207, false},
     HASWELL & ~RAPT_CPU_AVX2},
    {"Cascade Lake", {0x16, 0x7ffefbff, 0xd19ffffb, 0x00000818, 0, 0, 0, 0xe7, false}, CASCADE_LAKE},
    {"Cascade Lake, AVX512F hidden: VNNI does not count",
     {0x16, 0x7ffefbff, 0xd19efffb, 0x00000818, 0, 0, 0, 0xe7, false},
     HASWELL},
    {"Emerald Rapids, in a virtual machine, without subleaf 1, which was not recorded",
     {0x20, 0xfffa3203, 0xf1bf27eb, 0x1b415fde, 0xbfd14410, 0, 0, 0x602e7, true},
     RAPIDS & ~(RAPT_CPU_AVXVNNI | RAPT_CPU_AVX512BF16)},
    {"Sapphire Rapids, QEMU's model", {0x20, 0x7ffa3203, 0xf1bf0fb9, 0x01415f4e, 0xa7c14010, 1, 0x1c30, 0x602e7, true}, RAPIDS},
    {"Granite Rapids, QEMU's model, with AMX-FP16, which no kernel needs",
     {0x20, 0x7ffa3203, 0xf1bf0fb9, 0x01415f4e, 0xa7c14010, 2, 0x00201c30, 0x602e7, true},
     RAPIDS},
    {"Sapphire Rapids, Linux does not give the tiles (it is older than 5.16, or there is a small alternate signal stack)",
     {0x20, 0x7ffa3203, 0xf1bf0fb9, 0x01415f4e, 0xa7c14010, 1, 0x1c30, 0x602e7, false},
     RAPIDS & ~RAPT_CPU_AMX_PERMISSION},
    {"Sapphire Rapids, the OS does not save the tiles' data",
     {0x20, 0x7ffa3203, 0xf1bf0fb9, 0x01415f4e, 0xa7c14010, 1, 0x1c30, 0x202e7, true},
     UNTILED_RAPIDS},
    {"Sapphire Rapids, the OS does not save the tiles' configuration",
     {0x20, 0x7ffa3203, 0xf1bf0fb9, 0x01415f4e, 0xa7c14010, 1, 0x1c30, 0x402e7, true},
     UNTILED_RAPIDS},
    {"Sapphire Rapids, AMX hidden by the hypervisor",
     {0x20, 0x7ffa3203, 0xf1bf0fb9, 0x01415f4e, 0xa4814010, 1, 0x1c30, 0x602e7, true},
     UNTILED_RAPIDS},
    {"Sapphire Rapids, AMX-BF16 alone hidden",
     {0x20, 0x7ffa3203, 0xf1bf0fb9, 0x01415f4e, 0xa7814010, 1, 0x1c30, 0x602e7, true},
     RAPIDS & ~RAPT_CPU_AMX_BF16},
    {"Sapphire Rapids, AMX-INT8 alone hidden",
     {0x20, 0x7ffa3203, 0xf1bf0fb9, 0x01415f4e, 0xa5c14010, 1, 0x1c30, 0x602e7, true},
     RAPIDS & ~RAPT_CPU_AMX_INT8},
    {"nothing", {0, 0xffffffff, 0xffffffff, 0xffffffff, 0, 1, 0xffffffff, ~UINT64_C(0), false}, 0},
};

static const struct {
    const char *name;
    uint64_t hwcap, hwcap2;
    uint32_t sve_bytes, features;
} aarch64[] = {
    {"Cortex-A53", 0x8ff, 0, 0, RAPT_CPU_NEON},
    {"Neoverse N1", 0x119fff, 0, 0, NEON_DOT},
    {"Neoverse N1, QEMU's model", 0x119ffb, 0, 0, NEON_DOT},
    {"A64FX, QEMU's model", 0x415ffb, 0, 64, RAPT_CPU_NEON | RAPT_CPU_SVE | RAPT_CPU_SVE_OF_512},
    {"QEMU's model with all that it has, vectors of 512 bits", 0xecfffffb, 0x7f877fff, 64,
     NEON_ALL | RAPT_CPU_SVE | RAPT_CPU_SVE_OF_512},
    {"the same, vectors of 256 bits", 0xecfffffb, 0x7f877fff, 32, NEON_ALL | RAPT_CPU_SVE | RAPT_CPU_SVE_OF_256},
    {"the same, vectors of 128 bits, as on Neoverse V2", 0xecfffffb, 0x7f877fff, 16, NEON_ALL | RAPT_CPU_SVE},
    {"the same, vectors of 2048 bits", 0xecfffffb, 0x7f877fff, 256, NEON_ALL | RAPT_CPU_SVE},
    {"the same, SVE hidden: a length means nothing", 0xecbffffb, 0x76181, 32, NEON_ALL},
    {"the same, its products of matrices hidden: those of SVE are others", 0xecbffffb, 0x7f875fff, 0, NEON_ALL & ~RAPT_CPU_I8MM},
    {"the same, its products of four bytes hidden", 0xecaffffb, 0x7f877fff, 0, NEON_ALL & ~RAPT_CPU_DOTPROD},
    {"the same, its products of bf16 hidden", 0xecbffffb, 0x7f873fff, 0, NEON_ALL & ~RAPT_CPU_BF16},
    {"floating point without Advanced SIMD", 0x400001, 0x2000, 32, 0},
    {"none (a kernel without FPSIMD)", 0x0, 0, 0, 0},
};

/* Other architectures, as QEMU's models of their CPUs report them; what no model has is made of one. */
static const struct {
    const char *name;
    uint32_t (*decode)(uint64_t);
    uint64_t hwcap;
    uint32_t features;
} others[] = {
    {"Cortex-A7", rapt_arm_decode, 0x1fb8d7, RAPT_CPU_NEON | RAPT_CPU_VFPV4},
    {"Cortex-A8: NEON without VFPv4", rapt_arm_decode, 0x08b8d7, RAPT_CPU_NEON},
    {"Arm with VFPv4 and no NEON", rapt_arm_decode, 0x1fa8d7, RAPT_CPU_VFPV4},
    {"POWER8", rapt_power_decode, 0x58000580, RAPT_CPU_VSX},
    {"POWER8, whose hypervisor hides VSX", rapt_power_decode, 0x58000500, 0},
    {"IBM Z, all that QEMU has", rapt_s390x_decode, 0x2b3f, RAPT_CPU_VXE},
    {"IBM z13: vectors without the enhancements", rapt_s390x_decode, 0x0b3f, 0},
    {"IBM Z, whose hypervisor hides vectors", rapt_s390x_decode, 0x233f, 0},
    {"LoongArch with LSX", rapt_loongarch_decode, 0x0000001f, RAPT_CPU_LSX},
    {"LoongArch without vectors", rapt_loongarch_decode, 0x0000000f, 0},
};

/* RISC-V: the bits of its extensions, and what vsetvli leaves: that of version 0.7.1 by its specification, for no such CPU was
 * here. */
static const struct {
    const char *name;
    uint64_t hwcap;
    bool probed;
    uint64_t extensions;
    int64_t vtype;
    uint64_t bytes;
    uint32_t features;
} riscv[] = {
    {"RISC-V without vectors", 0x112d, false, 0, 0xc0, 16, 0},
    {"RISC-V without vectors, Linux 6.4", 0x112d, true, 3, 0xc0, 16, 0},
    {"RISC-V with vectors that hwprobe has not", 0x20112d, true, 3, 0xc0, 16, 0},
    {"RISC-V with vectors of version 0.7.1, a vendor's Linux 5.10", 0x20112d, false, 0, INT64_MIN, 0, 0},
    {"RISC-V with vectors of 128 bits", 0x20112d, false, 0, 0xc0, 16, RAPT_CPU_RVV | RAPT_CPU_RVV_OF_128},
    {"RISC-V with vectors of 256 bits, Linux 6.6", 0x20112d, true, 7, 0xc0, 32, RAPT_CPU_RVV | RAPT_CPU_RVV_OF_256},
    {"RISC-V with vectors of 512 bits", 0x20112d, false, 0, 0xc0, 64, RAPT_CPU_RVV | RAPT_CPU_RVV_OF_512},
    {"RISC-V with vectors of 1024 bits", 0x20112d, false, 0, 0xc0, 128, RAPT_CPU_RVV},
};

/* What `sysctl hw.optional.arm` prints of these, and which of the numbers of winnt.h Windows knows to be there. */
static const struct {
    const char *name, *text;
    uint32_t features;
} apple[] = {
    {"Apple M1", "hw.optional.arm.FEAT_BF16: 0\nhw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_I8MM: 0\n", NEON_DOT},
    {"Apple M2", "hw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_I8MM: 1\n", NEON_ALL},
    {"the same, without products of matrices of bytes",
     "hw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_I8MM: 0\n", NEON_ALL & ~RAPT_CPU_I8MM},
    {"Apple M1, macOS 11, which has no such names", "hw.optional.neon: 1\nhw.optional.armv8_2_fhm: 1\n", RAPT_CPU_NEON},
};
static const struct {
    const char *name;
    uint32_t numbers[8];
    uint32_t features;
} windows_arm[] = {
    {"Windows on a Cortex-A72", {19, 25, 29, 30, 31}, RAPT_CPU_NEON},
    {"Windows on a Neoverse N1", {19, 25, 29, 30, 31, 34, 43}, NEON_DOT},
    {"Windows on a Neoverse N2, which Windows 10 does not know", {19, 25, 29, 30, 31, 34, 43, 45}, NEON_DOT},
    {"Windows on a Neoverse N2", {19, 30, 43, 45, 46, 66, 67, 68}, NEON_ALL},
    {"the same, without products of matrices of bytes", {19, 30, 43, 45, 46, 67, 68}, NEON_ALL & ~RAPT_CPU_I8MM},
    {"the same, without bf16", {19, 30, 43, 45, 46, 66, 67}, NEON_ALL & ~RAPT_CPU_BF16},
};
static const char *apple_says;
static const uint32_t *windows_says;

static bool by_name(const char *name) {
    const char *line = strstr(apple_says, name);
    return line && strncmp(line + strlen(name), ": 1", 3) == 0;
}
static bool by_number(uint32_t number) {
    bool found = false;
    for (int i = 0; i < 8; i++) found = found || windows_says[i] == number;
    return found;
}

int main(void) {
    for (size_t i = 0; i < sizeof apple / sizeof *apple; i++) {
        apple_says = apple[i].text;
        uint32_t got = rapt_apple_decode(by_name);
        tap_ok(got == apple[i].features, "%s: %#x, want %#x", apple[i].name, (unsigned)got, (unsigned)apple[i].features);
    }
    for (size_t i = 0; i < sizeof windows_arm / sizeof *windows_arm; i++) {
        windows_says = windows_arm[i].numbers;
        uint32_t got = rapt_windows_arm_decode(by_number);
        tap_ok(got == windows_arm[i].features, "%s: %#x, want %#x", windows_arm[i].name, (unsigned)got,
               (unsigned)windows_arm[i].features);
    }
    for (size_t i = 0; i < sizeof riscv / sizeof *riscv; i++) {
        const bool vectors = rapt_riscv_has_vectors(riscv[i].hwcap, riscv[i].probed, riscv[i].extensions);
        uint32_t got = vectors ? rapt_riscv_decode(riscv[i].vtype, riscv[i].bytes) : 0;
        tap_ok(got == riscv[i].features, "%s: %#x, want %#x", riscv[i].name, (unsigned)got, (unsigned)riscv[i].features);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        uint32_t got = others[i].decode(others[i].hwcap);
        tap_ok(got == others[i].features, "%s: %#x, want %#x", others[i].name, (unsigned)got, (unsigned)others[i].features);
    }
    for (size_t i = 0; i < sizeof x86 / sizeof *x86; i++) {
        uint32_t got = rapt_x86_decode(&x86[i].registers);
        tap_ok(got == x86[i].features, "%s: %#x, want %#x", x86[i].name, (unsigned)got, (unsigned)x86[i].features);
    }
    for (size_t i = 0; i < sizeof aarch64 / sizeof *aarch64; i++) {
        uint32_t got = rapt_aarch64_decode(aarch64[i].hwcap, aarch64[i].hwcap2, aarch64[i].sve_bytes);
        tap_ok(got == aarch64[i].features, "%s: %#x, want %#x", aarch64[i].name, (unsigned)got, (unsigned)aarch64[i].features);
    }
    static const struct {
        const char *name;
        uint32_t ecx;
        size_t bytes;
    } l2[] = {{"AMD Zen 2, by its manual", 0x02006140, 512 << 10},
              {"Xeon (Emerald Rapids)", 0x08007040, 2 << 20},
              {"Core i7-6700 (Skylake)", 0x01006040, 256 << 10},
              {"a CPU that does not say", 0, 0}};
    for (size_t i = 0; i < sizeof l2 / sizeof *l2; i++)
        tap_ok(rapt_x86_l2(l2[i].ecx) == l2[i].bytes, "%s: %zu bytes of L2", l2[i].name, rapt_x86_l2(l2[i].ecx));
    tap_ok(rapt_x86_slow(0x756e6547, 0x49656e69, 0x6c65746e) == RAPT_CPU_AVX512BF16, "GenuineIntel: VDPBF16PS is slow");
    tap_ok(rapt_x86_slow(0x756e6547, 0x49656e69, 0) == 0 && rapt_x86_slow(0x756e6547, 0, 0) == 0, "a part of that name is none");
    tap_ok(rapt_x86_slow(0x68747541, 0x69746e65, 0x444d4163) == 0, "AuthenticAMD: nothing is slow");
    tap_ok(rapt_x86_slow(0, 0, 0) == 0, "a vendor without a name: nothing is slow");
    static const uint32_t in_order[] = {RAPT_CPU_SSE41,      RAPT_CPU_AVX,        RAPT_CPU_F16C,       RAPT_CPU_FMA,
                                        RAPT_CPU_AVX2,       RAPT_CPU_AVX512F,    RAPT_CPU_AVX512DQ,   RAPT_CPU_AVX512BW,
                                        RAPT_CPU_AVX512VL,   RAPT_CPU_NEON,       RAPT_CPU_AVX512VNNI, RAPT_CPU_DOTPROD,
                                        RAPT_CPU_AMX_TILE,   RAPT_CPU_AMX_BF16,   RAPT_CPU_AMX_INT8,   RAPT_CPU_AMX_PERMISSION,
                                        RAPT_CPU_I8MM,       RAPT_CPU_AVXVNNI,    RAPT_CPU_VFPV4,      RAPT_CPU_VSX,
                                        RAPT_CPU_VXE,        RAPT_CPU_LSX,        RAPT_CPU_BF16,       RAPT_CPU_SVE,
                                        RAPT_CPU_SVE_OF_256, RAPT_CPU_SVE_OF_512, RAPT_CPU_RVV,        RAPT_CPU_RVV_OF_128,
                                        RAPT_CPU_RVV_OF_256, RAPT_CPU_RVV_OF_512, RAPT_CPU_AVX512BF16};
    int misplaced = 0;
    for (size_t i = 0; i < sizeof in_order / sizeof *in_order; i++) misplaced += in_order[i] != UINT32_C(1) << i;
    tap_ok(!misplaced, "each feature has the bit of its name's place in the list; %d have not", misplaced);
    tap_ok(rapt_self_check(NULL, NULL, 0) == RAPT_OK, "kernels that can run here have their bits, others are passed over");
    /* Forcing: unknown names, and that what cannot run is refused with its reason rather than replaced. */
    tap_ok(rapt_isa_force("avx1024") == RAPT_ERR_ISA_UNKNOWN, "an unknown kernel cannot be forced");
    tap_ok(rapt_isa_usable(NULL, NULL, 0) == RAPT_ERR_NULL, "a null name is refused");
    char unknown[] = "unset", none[] = "unset";
    tap_ok(rapt_isa_usable("avx1024", unknown, sizeof unknown) == RAPT_ERR_ISA_UNKNOWN && unknown[0] == '\0',
           "an unknown kernel lacks nothing");
    tap_ok(rapt_isa_usable("scalar", none, 0) == RAPT_OK && rapt_cpu_features(none, 0) == RAPT_OK && strcmp(none, "unset") == 0,
           "no bytes: nothing is written");
    tap_ok(!rapt_isa_rounding(NULL) && !rapt_isa_rounding("avx1024"), "no name, or an unknown one, has no rounding");
    tap_ok(rapt_l2_bytes() >= 256 << 10 && rapt_l2_bytes() <= 2 << 20, "%zu bytes of L2 lie in the range that plans are made for",
           rapt_l2_bytes());
    const char *name, *current;
    char features[400] = "unset", words[402];
    tap_ok(rapt_cpu_features(features, sizeof features) == RAPT_OK && strcmp(features, "unset") != 0, "this CPU has: %s",
           features);
    snprintf(words, sizeof words, " %s ", features);
    for (int i = 0; (name = rapt_isa_name(i)); i++) {
        char missing[200] = "unset", copy[200], word[203];
        rapt_status status = rapt_isa_usable(name, missing, sizeof missing);
        bool told = false;
        for (char *lacks = strtok(strcpy(copy, missing), " "); lacks; lacks = strtok(NULL, " ")) {
            snprintf(word, sizeof word, " %s ", lacks);
            told = told || strstr(words, word);
        }
        tap_ok(!told, "%s: what is missing is not among what the CPU has", name);
        tap_ok((status == RAPT_OK) == (missing[0] == '\0'), "%s: missing \"%s\"", name, missing);
        tap_ok(rapt_isa_force(name) == status, "%s: forcing says %s", name, rapt_status_string(status));
        rapt_isa_current(&current);
        tap_ok((strcmp(current, name) == 0) == (status == RAPT_OK), "%s: the choice is %s", name, current);
        char cut[4] = "xxx";
        rapt_isa_usable(name, cut, sizeof cut);
        tap_ok(strncmp(cut, missing, 3) == 0 && strlen(cut) <= 3, "%s: a short buffer cuts the reason", name);
    }
    tap_ok(rapt_isa_name(-1) == NULL, "no kernel before the first");
    return tap_done();
}
