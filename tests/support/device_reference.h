/* SPDX-License-Identifier: Apache-2.0 */
/* device_reference.h - operations in fp64, in the shortest form of their formulas. device_reference_check() compares
 * their backward passes with finite differences of their forward passes. */
#ifndef TITAN_TESTS_SUPPORT_DEVICE_REFERENCE_H
#define TITAN_TESTS_SUPPORT_DEVICE_REFERENCE_H

#include <stdint.h>

void ref_rmsnorm(double *y, double *rstd, const double *x, const double *g, int64_t n, int64_t c, double eps);
/* Adds to dg. */
void ref_rmsnorm_grad(double *dx, double *dg, const double *dy, const double *x, const double *g, const double *rstd,
                      int64_t n, int64_t c);

/* An attention problem; places as device.h's index, start and key_index, NULL = causal. */
struct attention_ref {
    int64_t b, tq, tk, h, kv, d, dv;
    const double *index, *start, *key_index;
    double scale;   /* 0: 1/sqrt(D) */
    double softcap; /* 0: none */
};
/* q (B*Tq,H,D), k (B*Tk,K,D), v (B*Tk,K,Dv), dense. */
void ref_attention(double *out, double *lse, const double *q, const double *k, const double *v,
                   const struct attention_ref *s);
/* Adds to dq, dk and dv. */
void ref_attention_grad(double *dq, double *dk, double *dv, const double *dout, const double *out, const double *lse,
                        const double *q, const double *k, const double *v, const struct attention_ref *s);
double ref_silu(double x);
double ref_dsilu(double x);
/* In its form with tanh. */
double ref_gelu(double x);
double ref_dgelu(double x);
/* Targets below 0 do not count. */
void ref_cross_entropy(double *loss, double *dx, const double *x, const double *target, int64_t n, int64_t v);

#endif
