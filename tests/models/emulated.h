// CUDA threads on a CPU, for kernels/cuda/: the threads of a program are fibres that run one after the other until each
// waits for its warp or for all. Warp instructions follow the register layouts of the PTX manual. Access to memory that
// was not passed to the kernel, or to shared memory beyond the reserved size, ends the process. Asynchronous copies only
// happen when they are awaited, and shared memory starts as NaNs.

#define EMULATED
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

struct alignas(16) u128 { unsigned x, y, z, w; };
struct alignas(8) Pair { float x, y; };

namespace emulated {

[[noreturn]] void fail(const char* why) {
    std::fprintf(stderr, "emulated: %s\n", why);
    std::exit(3);
}

struct Range { const char *begin, *end; };
struct Copy { unsigned to; const void* from; bool there; };

struct Fibre {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    int thread;
    bool done = false;
    std::vector<std::vector<Copy>> groups = std::vector<std::vector<Copy>>(1);
};

struct Meeting {  // of a warp, or of all
    int here = 0;
    long round = 0;
    const char* what = nullptr;
};

struct Lane {  // its input and output of a meeting
    unsigned at, a[4], b[2], found[4];
    float sum[4], value;
};

std::vector<Range> ranges;
std::vector<Fibre> fibres;
std::vector<Meeting> warps;
std::vector<Lane> lanes;
Meeting all;
std::vector<unsigned char> memory;
size_t reserved;  // its size
constexpr size_t BEYOND = 4096;
ucontext_t scheduler;
Fibre* now;
int program;
std::function<void()> body;

void check(const void* at, size_t size) {
    if (reinterpret_cast<size_t>(at) % size) fail("an address is not aligned");
    for (const Range& range : ranges)
        if (at >= range.begin && static_cast<const char*>(at) + size <= range.end) return;
    fail("global memory that is not the kernel's");
}

unsigned char* shared(unsigned at) {
    if (at % 16 || at + 16 > reserved) fail("shared memory that is not the kernel's");
    return memory.data() + at;
}

void meet(Meeting& meeting, int wanted, const char* what, const std::function<void()>& last) {
    if (meeting.here && std::strcmp(meeting.what, what)) fail("threads that should do the same do not");
    meeting.what = what;
    const long round = meeting.round;
    if (++meeting.here == wanted) {
        last();
        meeting.here = 0;
        meeting.round++;
        return;
    }
    while (meeting.round == round) swapcontext(&now->context, &scheduler);
}

void with_warp(const char* what, const std::function<void(Lane*)>& last) {
    const int warp = now->thread / 32;
    meet(warps[warp], 32, what, [&] { last(&lanes[32 * warp]); });
}

void enter() {
    body();
    now->done = true;
    swapcontext(&now->context, &scheduler);
}

void run(int programs, int threads, int bytes, const std::function<void()>& kernel) {
    body = kernel;
    for (program = 0; program < programs; program++) {
        reserved = bytes;
        memory.assign(reserved + BEYOND, 0xff);
        warps.assign(threads / 32, {});
        lanes.assign(threads, {});
        all = {};
        fibres.clear();
        fibres.resize(threads);
        for (int thread = 0; thread < threads; thread++) {
            Fibre& fibre = fibres[thread];
            fibre.thread = thread;
            fibre.stack.reset(new char[1 << 16]);
            getcontext(&fibre.context);
            fibre.context.uc_stack.ss_sp = fibre.stack.get();
            fibre.context.uc_stack.ss_size = 1 << 16;
            makecontext(&fibre.context, enter, 0);
        }
        for (bool left = true; left;) {
            left = false;
            for (Fibre& fibre : fibres) {
                if (fibre.done) continue;
                left = true;
                now = &fibre;
                swapcontext(&scheduler, &fibre.context);
            }
        }
        for (size_t at = reserved; at < memory.size(); at++)
            if (memory[at] != 0xff) fail("wrote shared memory that is not the kernel's");
    }
}

float number(unsigned short bits) {
    unsigned wide = static_cast<unsigned>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

// Thread (g, t) of eight by four gets row g, columns 2 t and 2 t + 1 of each matrix; transposed: column g,
// rows 2 t and 2 t + 1. Threads 8 i to 8 i + 7 have the addresses of the rows of matrix i.
void matrices(unsigned (&to)[4], unsigned at, bool turned) {
    Lane& mine = lanes[now->thread];
    mine.at = at;
    with_warp(turned ? "turned matrices" : "matrices", [turned](Lane* warp) {
        for (int i = 0; i < 4; i++) {
            unsigned short matrix[8][8];
            for (int row = 0; row < 8; row++) std::memcpy(matrix[row], shared(warp[8 * i + row].at), 16);
            for (int lane = 0; lane < 32; lane++) {
                const int g = lane / 4, t = lane % 4;
                const unsigned first = turned ? matrix[2 * t][g] : matrix[g][2 * t];
                const unsigned second = turned ? matrix[2 * t + 1][g] : matrix[g][2 * t + 1];
                warp[lane].found[i] = first | second << 16;
            }
        }
    });
    for (int i = 0; i < 4; i++) to[i] = mine.found[i];
}

}  // namespace emulated

#define SHARED(name) unsigned char* name = emulated::memory.data()
#define INLINE inline
#define KERNEL(threads) void
#define THREAD (emulated::now->thread)
#define PROGRAM (emulated::program)

inline unsigned shared_address(const void* at) {
    return static_cast<unsigned>(static_cast<const unsigned char*>(at) - emulated::memory.data());
}
inline void load_matrices(unsigned (&to)[4], unsigned at) { emulated::matrices(to, at, false); }
inline void load_turned(unsigned (&to)[4], unsigned at) { emulated::matrices(to, at, true); }

// mma.m16n8k16: a (16 x 16) is four matrices of 8 x 8: rows 0-7 and 8-15 of columns 0-7, then of columns 8-15; b
// (16 x 8) is two, transposed; the sum (16 x 8) is rows 0-7 and rows 8-15.
inline void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    emulated::Lane& mine = emulated::lanes[emulated::now->thread];
    std::memcpy(mine.a, a, 16);
    mine.b[0] = b0, mine.b[1] = b1;
    std::memcpy(mine.sum, sum, 16);
    emulated::with_warp("multiply", [](emulated::Lane* warp) {
        float left[16][16], right[16][8];
        for (int lane = 0; lane < 32; lane++) {
            const int g = lane / 4, t = lane % 4;
            for (int e = 0; e < 2; e++) {
                for (int i = 0; i < 4; i++)
                    left[g + i % 2 * 8][2 * t + e + i / 2 * 8] =
                        emulated::number(static_cast<unsigned short>(warp[lane].a[i] >> 16 * e));
                for (int i = 0; i < 2; i++)
                    right[2 * t + e + 8 * i][g] = emulated::number(static_cast<unsigned short>(warp[lane].b[i] >> 16 * e));
            }
        }
        for (int lane = 0; lane < 32; lane++) {
            for (int i = 0; i < 4; i++) {
                const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
                float total = warp[lane].sum[i];
                for (int k = 0; k < 16; k++) total += left[row][k] * right[k][column];
                warp[lane].sum[i] = total;
            }
        }
    });
    std::memcpy(sum, mine.sum, 16);
}

inline void copy_later(unsigned to, const unsigned short* from, bool there) {
    emulated::now->groups.back().push_back({to, from, there});
}
inline void copies_end() { emulated::now->groups.emplace_back(); }
template <int LEFT> void await_copies() {
    auto& groups = emulated::now->groups;
    while (static_cast<int>(groups.size()) - 1 > LEFT) {
        for (const emulated::Copy& copy : groups.front()) {
            if (copy.there) emulated::check(copy.from, 16);
            unsigned char* to = emulated::shared(copy.to);
            if (copy.there) std::memcpy(to, copy.from, 16);
            else std::memset(to, 0, 16);
        }
        groups.erase(groups.begin());
    }
}

inline float across(float value, int distance) {
    emulated::lanes[emulated::now->thread].value = value;
    float found;
    emulated::with_warp("across", [](emulated::Lane*) {});
    found = emulated::lanes[emulated::now->thread ^ distance].value;
    emulated::with_warp("across, after", [](emulated::Lane*) {});
    return found;
}
inline void barrier() {
    emulated::meet(emulated::all, static_cast<int>(emulated::fibres.size()), "barrier", [] {});
}

template <typename T> T read(const void* from) {
    emulated::check(from, sizeof(T));
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
}
template <typename T> void write(void* to, T value) {
    emulated::check(to, sizeof(T));
    std::memcpy(to, &value, sizeof(T));
}

inline unsigned rounded_bits(float value) {  // to the nearest, ties to even; no NaN comes here
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline unsigned rounded(float low, float high) { return rounded_bits(low) | rounded_bits(high) << 16; }
inline float as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
