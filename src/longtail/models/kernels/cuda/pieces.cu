// What the kernels are made of; after tile.cu.

constexpr int MINE = C / 4;            // channels of a thread: one after the other, so that it reads and writes them at once
constexpr int NT = C / 8, KT = C / 16; // a weight's columns and rows, in eights and sixteens
constexpr int MT = M < 16 * WARPS ? 1 : M / (16 * WARPS);  // a warp's pixels, in sixteens

struct Some { u32 two[MINE / 2]; };    // a thread's channels of a pixel

INLINE Some read_some(const u16* maps, int pixel, int first) {
    Some found;
    const u16* from = maps + (pixel * C + first);
    if constexpr (MINE == 4) {
        unsigned long long both = read<unsigned long long>(from);
        found.two[0] = (u32)both;
        found.two[1] = (u32)(both >> 32);
    } else {
#pragma unroll
        for (int i = 0; i < MINE / 8; i++) {
            u128 four = read<u128>(from + 8 * i);
            found.two[4 * i] = four.x, found.two[4 * i + 1] = four.y;
            found.two[4 * i + 2] = four.z, found.two[4 * i + 3] = four.w;
        }
    }
    return found;
}

INLINE void write_some(u16* maps, int pixel, int first, const Some& some) {
    u16* to = maps + (pixel * C + first);
    if constexpr (MINE == 4) {
        write<unsigned long long>(to, some.two[0] | (unsigned long long)some.two[1] << 32);
    } else {
#pragma unroll
        for (int i = 0; i < MINE / 8; i++) {
            write<u128>(to + 8 * i, u128{some.two[4 * i], some.two[4 * i + 1], some.two[4 * i + 2], some.two[4 * i + 3]});
        }
    }
}

// The weight, (9, C, C). Its columns are exchanged: thread ``lane % 4`` finds its channels in its columns of all products.
INLINE void hold_weight(unsigned char* weights, const u16* weight) {
    for (int i = THREAD; i < 9 * C * CHUNKS; i += THREADS) {
        const u128 some = read<u128>(weight + 8 * i);
        const u32 two[4] = {some.x, some.y, some.z, some.w};
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            const int channel = 8 * (i % CHUNKS) + 2 * pair;
            const int at = place(i / CHUNKS, channel % MINE / 2) + 4 * (channel / MINE);
            *reinterpret_cast<u32*>(weights + at) = two[pair];
        }
    }
}

// A warp's pixels times the weight. ``corners`` are where their surroundings begin, ``held`` the weight where it is small
// enough for registers, or nothing.
template <bool HELD>
INLINE void convolve(float (&sum)[MT][NT][4], const u32 (&corners)[MT], u32 weight_at, const u32 (*held)[4]) {
    const int lane = THREAD % 32;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++) sum[m][n][0] = sum[m][n][1] = sum[m][n][2] = sum[m][n][3] = 0.0f;
#pragma unroll(C == 16 ? 9 : 1)
    for (int tap = 0; tap < 9; tap++) {
#pragma unroll
        for (int k = 0; k < KT; k++) {
            u32 b[NT / 2][4];
#pragma unroll
            for (int n = 0; n < NT / 2; n++) {
                if constexpr (HELD) {
#pragma unroll
                    for (int i = 0; i < 4; i++) b[n][i] = held[tap][i];
                } else {
                    load_turned(b[n], weight_at + place(lane % 16, lane / 16) + place(tap * C + 16 * k, 2 * n));
                }
            }
#pragma unroll
            for (int m = 0; m < MT; m++) {
                u32 a[4];
                load_matrices(a, corners[m] + away(tap) + 32 * k);
#pragma unroll
                for (int n = 0; n < NT; n++) multiply(sum[m][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
            }
        }
    }
}

// All threads' sums of their channels, added up in ``shared`` (2 * WARPS * C numbers): afterwards a channel's are those of
// the warps, one after the other.
INLINE void gather_sums(float (&first)[MINE], float (&second)[MINE], float* shared) {
    const int lane = THREAD % 32, warp = THREAD / 32, mine = lane % 4 * MINE;
#pragma unroll
    for (int c = 0; c < MINE; c++) {
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) {
            first[c] += across(first[c], lanes);
            second[c] += across(second[c], lanes);
        }
        if (lane < 4) {
            shared[2 * warp * C + mine + c] = first[c];
            shared[(2 * warp + 1) * C + mine + c] = second[c];
        }
    }
    barrier();
}

// The gradient on its way through the ReLU and BatchNorm below: its mask, and the sums that BatchNorm's backward needs.
// JOINS: the ReLU ends a block, where the shortcut's gradient joins, and what left it is known.
template <bool JOINS> struct Passing {
    float mean[MINE], rstd[MINE], scale[MINE], shift[MINE], first[MINE], second[MINE];

    INLINE Passing(const float* norm, const float* gamma, const float* beta) {
        const int mine = THREAD % 4 * MINE;
#pragma unroll
        for (int c = 0; c < MINE; c++) {
            first[c] = second[c] = 0.0f;
            mean[c] = read<float>(norm + mine + c);
            rstd[c] = read<float>(norm + C + mine + c);
            if constexpr (!JOINS) {  // as an Entry has them, so that the ReLU lets the same through
                scale[c] = rstd[c] * read<float>(gamma + mine + c);
                shift[c] = read<float>(beta + mine + c) - mean[c] * scale[c];
            }
        }
    }

    INLINE Some operator()(const float (&value)[MINE], const Some& y, const Some& joined, const Some& seen) {
        Some left;
#pragma unroll
        for (int two = 0; two < MINE / 2; two++) {
            const float maps[2] = {low(y.two[two]), high(y.two[two])};
            float g[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int c = 2 * two + e;
                if constexpr (JOINS) {
                    const float out = e ? high(seen.two[two]) : low(seen.two[two]);
                    g[e] = out > 0 ? value[c] + (e ? high(joined.two[two]) : low(joined.two[two])) : 0.0f;
                } else {
                    g[e] = maps[e] * scale[c] + shift[c] > 0 ? value[c] : 0.0f;
                }
            }
            left.two[two] = rounded(g[0], g[1]);
            g[0] = low(left.two[two]), g[1] = high(left.two[two]);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int c = 2 * two + e;
                first[c] += g[e];
                second[c] += g[e] * ((maps[e] - mean[c]) * rstd[c]);
            }
        }
        return left;
    }
};

// Backward through the BatchNorm above, of the 16 bytes that a thread takes of each pixel: scale * (g - offset - slope * y).
struct Through {
    static constexpr int SLICES = THREADS / (2 * C);
    float scale[8], offset[8], slope[8];

    // ``sums`` (runs, 2, C) are what the kernel before summed up; the first program keeps them, as BatchNorm's gradients.
    // ``found``: THREADS numbers of shared memory.
    INLINE Through(const float* sums, int runs, const float* norm, const float* gamma, int pixels, float* found,
                   float* grad_gamma, float* grad_beta) {
        if (THREAD < SLICES * 2 * C) {
            float sum = 0.0f;
#pragma unroll 8
            for (int run = THREAD / (2 * C); run < runs; run += SLICES) {
                sum += read<float>(sums + (run * 2 * C + THREAD % (2 * C)));
            }
            found[THREAD] = sum;
        }
        barrier();
#pragma unroll
        for (int c = 0; c < 8; c++) {
            const int channel = 8 * (THREAD % CHUNKS) + c;
            float first = 0.0f, second = 0.0f;
            for (int slice = 0; slice < SLICES; slice++) {
                first += found[slice * 2 * C + channel];
                second += found[slice * 2 * C + C + channel];
            }
            if (PROGRAM == 0 && THREAD < CHUNKS) {
                write<float>(grad_beta + channel, first);
                write<float>(grad_gamma + channel, second);
            }
            const float rstd = read<float>(norm + C + channel);
            scale[c] = rstd * read<float>(gamma + channel);
            slope[c] = rstd * (second / (float)pixels);
            offset[c] = first / (float)pixels - read<float>(norm + channel) * slope[c];
        }
    }

    INLINE u128 operator()(const u128& g, const u128& y) const {
        const u32 gs[4] = {g.x, g.y, g.z, g.w}, ys[4] = {y.x, y.y, y.z, y.w};
        u32 two[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float one = scale[2 * c] * (low(gs[c]) - offset[2 * c] - low(ys[c]) * slope[2 * c]);
            const float other = scale[2 * c + 1] * (high(gs[c]) - offset[2 * c + 1] - high(ys[c]) * slope[2 * c + 1]);
            two[c] = rounded(one, other);
        }
        return u128{two[0], two[1], two[2], two[3]};
    }
};

// A warp's part of the weight's gradient: sixteen rows and 8 * N columns of each tap. SHARES warps hold the same part, each
// of some of the pixels; they add theirs up one after the other, in ``shared``, and the first writes.
template <int SHARES, int N> struct Part {
    static_assert(WARPS == SHARES * (C / 16) * (C / (8 * N)), "the warps share out the weight's gradient");
    static_assert(M / 16 % SHARES == 0, "every warp has the same to do");
    int share = THREAD / 32 % SHARES, row = THREAD / 32 / SHARES % (C / 16), column = THREAD / 32 / SHARES / (C / 16);
    float sum[9][N][4];

    INLINE Part() {
#pragma unroll
        for (int i = 0; i < 9 * N * 4; i++) sum[i / (N * 4)][i / 4 % N][i % 4] = 0.0f;
    }

    INLINE void write_up(unsigned char* shared, float* parts) {
        const int lane = THREAD % 32;
        float* shares = reinterpret_cast<float*>(shared) + THREAD / 32 / SHARES * (9 * N * 4 * 32);
#pragma unroll 1
        for (int other = 1; other < SHARES; other++) {
            if (share == other) {
#pragma unroll
                for (int i = 0; i < 9 * N * 4; i++) shares[32 * i + lane] = sum[i / (N * 4)][i / 4 % N][i % 4];
            }
            barrier();
            if (share == 0) {
#pragma unroll
                for (int i = 0; i < 9 * N * 4; i++) sum[i / (N * 4)][i / 4 % N][i % 4] += shares[32 * i + lane];
            }
            barrier();
        }
        if (share != 0) return;
#pragma unroll
        for (int i = 0; i < 9 * N * 2; i++) {
            const int tap = i / (2 * N), n = i / 2 % N, half = i % 2;
            const int in = 16 * row + 8 * half + lane / 4, out = 8 * (column * N + n) + 2 * (lane % 4);
            write<Pair>(parts + (((PROGRAM * 9 + tap) * C + in) * C + out),
                        Pair{sum[tap][n][2 * half], sum[tap][n][2 * half + 1]});
        }
    }
};
