"""Arrival laws, fitted from a trace and chosen by held-out likelihood."""
